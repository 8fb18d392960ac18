"""Accelerate and Hugging Face's Trainer: every sample once, in any number of processes, or an error in all of them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.budget import later
from tests.fakes.feed_process import FeedProcess, run_probe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks"), pytest.mark.timeout(400)]
STEPS = 4
BATCH = 8
EPOCH = 100_000_000
SINGLES = 64  # of one step where samples come one at a time
ONE_EPOCH = {"device loader"}
ALWAYS_REFUSED = {
    "split": "leave it out",
    "batches of batches": "DataLoader(dataset, batch_size=None)",
    "trainer, batches": "batch_size=None) for Trainer",
}
DEALT_OUT = {
    "dispatcher": "DeviceLoader(dataset, device=accelerator.device)",
    "dispatcher, workers": "DeviceLoader(dataset, device=accelerator.device)",
    "shard": "DeviceLoader(dataset, device=accelerator.device)",
}


def _probe(short_dir: Path, count: int) -> list[dict[str, Any]]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    variables = {"OMP_NUM_THREADS": "1"}
    if count > 1:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    with (
        FeedProcess(short_dir / "a.sock", steps=STEPS, specs="ids", tell_steps=True, uneven="drop") as known,
        FeedProcess(short_dir / "b.sock", steps={0: STEPS + 1, 1: STEPS}, specs="ids") as unknown,
    ):
        arguments = (known.address, unknown.address, str(STEPS), str(count))
        ranks = run_probe("tests.unit.client.accelerate_probe", *arguments, env=variables, timeout_s=300.0)["ranks"]
    assert len(ranks) == count
    return list(ranks)


def _wanted(way: str, count: int) -> list[int]:
    size = SINGLES if way in {"singles", "trainer"} else BATCH
    steps = STEPS + 1 if way == "join" and count == 1 else STEPS
    epochs = 1 if way in {*ONE_EPOCH, *DEALT_OUT} else 2
    return [epoch * EPOCH + one for epoch in range(epochs) for one in range(steps * size * count)]


@pytest.mark.parametrize("count", [later(1), 2])
def test_every_sample_comes_once_or_all_are_told_what_to_write(short_dir: Path, count: int) -> None:
    """Prepared in whatever way, processes see each sample once between them; what cannot be is an error in each."""
    found = _probe(short_dir, count)
    refused = {**ALWAYS_REFUSED, **(DEALT_OUT if count > 1 else {})}
    for way in found[0]:
        got = [one[way] for one in found]
        if way in refused:
            assert all(isinstance(one, str) and refused[way] in one for one in got), (way, got)
            continue
        assert all(isinstance(one, list) for one in got), (way, got)
        assert sorted(one for rank in got for one in rank) == _wanted(way, count), way
        assert len({len(one) for one in got}) == 1, f"{way}: processes took steps of different number"
