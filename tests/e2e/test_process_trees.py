"""Daemons started for process trees: any user, several at a time, no configuration, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from feedd.cache.lock import DirectoryLock, sweep
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_TRAINER = """
import sys
from feedd_client import FeedDataset
for batch in FeedDataset(sys.argv[1], batch_size=4, fields={"cls": "int"}):
    print("got", flush=True)
    sys.stdin.readline()
"""


def _caches(folder: Path) -> list[Path]:
    return list(folder.glob("feedd-cache-*"))


@pytest.mark.nightly
def test_two_trees_at_once(short_dir: Path) -> None:
    """Two unrelated trainers without any daemon or setting each get one; caches, logs and locks are gone with them."""
    (short_dir / "data").mkdir()
    (short_dir / "data" / "0.tar").write_bytes(numbered(0, 8))
    env = os.environ | {"TMPDIR": str(short_dir), "FEEDD_CACHE__FREE_RESERVE": "1MiB"}
    env.pop("XDG_RUNTIME_DIR", None)
    trainers = [
        subprocess.Popen(
            [sys.executable, "-c", _TRAINER, f"file://{short_dir}/data/"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        for _ in range(2)
    ]
    try:
        firsts = [trainer.stdout.readline() if trainer.stdout else b"" for trainer in trainers]
        caches = {str(path) for path in _caches(short_dir)}
        assert len(caches) == 2
        pages = {path.read_text().strip() for path in short_dir.glob("feedd-*/*/feedd.sock.page")}
        assert [_status_of(page) for page in pages] == [200, 200]
        assert [_status_of(f"{page.rpartition('/')[0][:-1]}/") for page in pages] == [404, 404]
        assert [_status_of(f"{'/'.join(page.split('/')[:3])}/healthz") for page in pages] == [404, 404]
        logs = "".join(path.read_text() for path in short_dir.glob("feedd-*/*/feedd.log"))
    finally:
        told = [trainer.communicate(timeout=PATIENT_S) for trainer in trainers]
    assert firsts == [b"got\n"] * 2, told
    assert [trainer.returncode for trainer in trainers] == [0, 0], told
    lines = [line for _, text in told for line in text.decode().splitlines() if "started a feedd daemon" in line]
    assert {line.partition(" Cache: ")[2].partition(". Log: ")[0] for line in lines} == caches, "each says its own"
    assert {line.partition(" Web page: ")[2] for line in lines} == pages, "each says its own"
    assert '"event": "status page"' in logs
    assert not [page for page in pages if page.split("/")[3] in logs], "a token is in a log"
    deadline_s = time.monotonic() + PATIENT_S
    while left := [*_caches(short_dir), *short_dir.glob("feedd-*/*")]:
        assert time.monotonic() < deadline_s, f"{left} outlived the process tree"
        time.sleep(0.05)


def _status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=PATIENT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_what_a_killed_one_left_is_swept(short_dir: Path) -> None:
    """The next start removes a cache nobody owns; one in use, one just made and other people's files stay."""
    names = ("left", "used", "young", "killed")
    homes = {name: short_dir / f"feedd-cache-{os.geteuid()}-{name}" for name in names}
    other = short_dir / "feedd-cache-of-somebody"
    for home in (*homes.values(), other):
        (home / "v1").mkdir(parents=True)
        (home / "v1" / "block").write_bytes(b"x")
    (homes["killed"] / "lock").write_text("1\n")  # young, but nobody who locks it will come any more
    with DirectoryLock(homes["used"]):
        for home in (homes["left"], homes["used"], other):
            os.utime(home, (1, 1))
        sweep(short_dir)
    assert [home.exists() for home in (*homes.values(), other)] == [False, True, True, False, True]
