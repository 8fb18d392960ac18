"""The demo's data, when the user interrupts while it is written."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from rich.console import Console

from feedd.cli import demo_data as data
from feedd.cli.demo import write_data
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from numpy.random import Generator


async def test_an_interrupted_upload_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No thread is inside OpenCV when the process exits: it would end by abort(), with exit code -6."""
    drawing, go_on = threading.Event(), threading.Event()
    shards: list[int] = []
    draw = data.draw

    def slow(label: int, rng: Generator) -> object:
        drawing.set()
        assert go_on.wait(PATIENT_S)
        return draw(label, rng)

    monkeypatch.setattr(data, "draw", slow)
    monkeypatch.setattr(data, "_put", lambda url, payload: shards.append(len(payload)))
    options = data.DataOptions(shard_count=1000, samples_per_shard=2)
    target = data.Target("http://127.0.0.1:1", "bucket", "train/", tmp_path / "kept")
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(write_data(options, target, Console(quiet=True)))
        assert await asyncio.to_thread(drawing.wait, 30)
        writing.cancel()
        await asyncio.sleep(0.05)
        assert not writing.done()
        go_on.set()
    assert writing.cancelled()
    assert len(shards) == 2  # the bucket, and the shard that was being written
    assert [path.stat().st_size for path in (tmp_path / "kept").iterdir()] == shards[1:]  # --keep: the same shard
