"""``feedd pack --engine ray`` on a cluster of two nodes, one of which ends meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.two_raylets import run_on_two
from tests.unit.pack.packing import folder, options, packed, shards

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(480)]


@pytest.mark.parametrize("case", ["keep", "lose"])
def test_two_nodes_write_the_same_bytes(tmp_path: Path, case: str) -> None:
    """The shards and the manifest are those of one process, even if a node is killed with a task on it."""
    folder(tmp_path / "in", each=400)
    asyncio.run(packed(options(tmp_path / "in"), tmp_path / "one"))
    arguments = [str(tmp_path / "in"), str(tmp_path / "ray"), "--format", "tar", "--shard-size", "1MiB"]
    kill_at = str(tmp_path / "ray" / "shard-*") if case == "lose" else ""
    done = run_on_two("pack", *arguments, kill_at=kill_at)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == len(shards(tmp_path / "one")) > 20
    assert shards(tmp_path / "ray") == shards(tmp_path / "one")
    manifests = [json.loads((tmp_path / name / "_feedd_pack.json").read_bytes()) for name in ("one", "ray")]
    assert manifests[0] == manifests[1]
    assert not (tmp_path / "ray" / ".feedd_pack").exists()
