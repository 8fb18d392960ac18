"""Leaving a pass early: together it costs nothing, alone it is told to the others, at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.feed_process import FeedProcess, rank_environment, run_probe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_ranks_leave_passes(short_dir: Path) -> None:
    """After a break on all ranks the next pass is whole whatever was in flight; a rank left alone hears why."""
    found: dict[int, dict[str, Any]] = {}

    def rank(number: int, *addresses: str) -> None:
        found[number] = run_probe(
            "tests.unit.client.leave_probe",
            *addresses,
            env=rank_environment(number, 2) | {"MEETING": str(short_dir / "meeting")},
        )

    with (
        FeedProcess(short_dir / "a.sock", steps={0: 12, 1: 9}) as plain,
        FeedProcess(short_dir / "b.sock", steps=3, last_rows=0, fill=False, specs="ids") as empty,
    ):
        addresses = (plain.address, empty.address)
        threads = [threading.Thread(target=rank, args=(number, *addresses)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(110)
    for number in (0, 1):
        seen = found[number]
        assert seen["after_leaving"] == [9, 9, 9]
        assert seen["rows"] == [4, 4, 0]  # a batch whose samples were all bad is not the end
        assert seen["length"] == 3
        assert seen["taken"] == seen["uneven_length"] == 9
    assert "out of device memory" in found[1]["failed"]
    assert "left this pass" in found[0]["failed"]
    assert "left this pass" in found[0]["broke_alone"]
