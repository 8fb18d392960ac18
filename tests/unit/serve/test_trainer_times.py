"""What a client reports of the trainer's loop, in the list of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.wire import feedd_pb2 as pb
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import serving

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ({"wall_s": 9.0, "wait_s": 2.0, "steps": 5, "device": "cuda:0"}, True),
        ({"wall_s": float("nan")}, False),
        ({"wait_s": -1.0}, False),
        ({"pause_s": float("inf")}, False),
        ({"device": "x" * 100}, False),
    ],
)
async def test_times_of_the_trainer_are_kept(short_dir: Path, times: dict[str, Any], kept: bool) -> None:
    """The latest times stand in the list of sessions, unless no trainer can have them."""
    async with serving(short_dir, FakeScript(steps=3)) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, inline_only=True)
        await stream.send(credits=1, times=pb.TrainerTimes(**times))
        while not stream.payloads:
            await stream.read()
        (entry,) = (await rig.admin.Sessions(pb.SessionsRequest())).sessions
        assert entry.HasField("times") == kept
        assert entry.times == (pb.TrainerTimes(**times) if kept else pb.TrainerTimes())
        assert (entry.rank, entry.world_size, entry.inline) == (0, 1, True)
