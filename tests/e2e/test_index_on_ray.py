"""``feedd index --engine ray`` on a cluster of two nodes, one of which ends meanwhile."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.e2e.two_raylets import run_on_two
from tests.fakes import forks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(480)]

_SHARDS = 96


def _written(folder: Path) -> dict[str, bytes]:
    """Return what ``feedd index`` has written, and remove it."""
    manifest = folder / "_feedd_manifest"
    found = {path.name: path.read_bytes() for path in (folder / "_feedd_index.json", *manifest.iterdir())}
    (folder / "_feedd_index.json").unlink()
    shutil.rmtree(manifest)
    return found


@pytest.mark.parametrize("case", ["keep", "lose"])
def test_two_nodes_write_the_same_bytes(tmp_path: Path, case: str) -> None:
    """Index and manifest are those of one process, even if a node is killed while its task counts."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(_SHARDS):
        (folder / f"{number:03d}.tar").write_bytes(numbered(number, 3 + number % 7, pad_bytes=200_000))
    with forks.Running(["index", f"{folder}/", "--manifest"], dict(os.environ)) as run:
        _, complained = run.communicate(timeout=PATIENT_S)
        assert run.returncode == 0, complained
    one = _written(folder)
    done = run_on_two("index", f"{folder}/", "--manifest", kill_at="ray::count_shards" if case == "lose" else "")
    assert done.returncode == 0, done.stderr
    assert ("a node was killed" in done.stderr) == (case == "lose")
    facts = json.loads(done.stdout)
    assert (facts["counted"], facts["failed"]) == (_SHARDS, [])
    assert facts["fetched_bytes"] >= facts["counted_bytes"] > 0
    assert _written(folder) == one
    assert set(one) == {"_feedd_index.json", "00000001.feedd"}


def test_a_shard_that_cannot_be_counted_is_named(tmp_path: Path) -> None:
    """The other shards of its task are counted all the same."""
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(numbered(number, 5))
    (tmp_path / "1.tar").write_bytes(b"no tar " * 1000)
    done = run_on_two("index", f"{tmp_path}/")
    assert done.returncode == 1, done.stderr
    assert "1.tar" in done.stderr
    facts = json.loads(done.stdout)
    assert (facts["known"], facts["samples"], len(facts["failed"])) == (2, 10, 1)
