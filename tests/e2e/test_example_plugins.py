"""The example package of docs/examples/plugins, installed by pip: its format, codec and store, through a daemon."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd_client import FeedDataset, FeedError
from tests.budget import PATIENT_S
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    home = tmp_path_factory.mktemp("plugins")
    source = shutil.copytree(ROOT / "docs" / "examples" / "plugins", home / "source")  # setuptools writes beside it
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(home / "site"), str(source)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )
    assert done.returncode == 0, done.stderr
    return home / "site"


def depth(number: int) -> np.ndarray:
    """Return the depth map of one sample, in millimetres."""
    return np.arange(number, number + 2 * (number + 1), dtype=np.uint16).reshape(2, number + 1)


def record(number: int) -> bytes:
    """Return one sample as it is stored."""
    return np.array(depth(number).shape, "<u4").tobytes() + depth(number).tobytes()


def records(*numbers: int) -> bytes:
    """Return a shard."""
    return b"RECORDS1" + b"".join(len(record(n)).to_bytes(4, "little") + record(n) for n in numbers)


def test_a_format_a_codec_and_a_store_come_with_a_package(
    daemons: Callable[..., Daemon], site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards known by their extension, by their first bytes or by the URL are read from the store and decoded."""
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    monkeypatch.setenv("SHELF_ROOT", str(tmp_path / "shelf"))
    folder = tmp_path / "shelf" / "rooms"
    for name, data in {
        "named/0.records": records(0, 1, 2),
        "named/1.records": records(3, 4),
        "sniffed/part-0": records(5, 6),
        "bad/0.records": records(7, 8)[:-1],
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    daemon = daemons(forked=False)  # its imports are what this is about

    def read(url: str) -> list[np.ndarray]:
        fields = {"data": {"decode": "depth_map", "scale": 0.5}}
        dataset = FeedDataset(url, batch_size=2, fields=fields, address=daemon.address, copy=True)
        return [batch["data"][row].numpy() for batch in dataset for row in range(len(batch["data"]))]

    for url, numbers in (
        ("shelf://rooms/named/", range(5)),
        ("shelf://rooms/named/1.records", range(3, 5)),
        ("shelf://rooms/sniffed/", range(5, 7)),
        ("records+shelf://rooms/sniffed/", range(5, 7)),
    ):
        for got, number in zip(read(url), numbers, strict=True):
            np.testing.assert_array_equal(got, depth(number) * np.float32(0.5))
    for url, message in (
        ("shelf://rooms/bad/", "expected a whole record"),
        ("shelf://rooms/none/", "at least one object"),
        ("shelf://other/named/", "expected a folder"),
        ("shelf:///named/", "expected a name after shelf://"),
        ("rack://rooms/named/", "got scheme 'rack'"),
    ):
        with pytest.raises(FeedError, match=message):
            read(url)
