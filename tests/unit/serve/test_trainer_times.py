"""What a client reports of the trainer's loop, in the list of sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pytest

from feedd import metrics
from feedd.serve.served_session import ServedSession
from feedd.values import Topology
from feedd.wire import feedd_pb2 as pb
from tests.fakes.backend import FakeBackend, FakeScript
from tests.fakes.specs import open_spec
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
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


@dataclass
class Told:
    """A hosted session of a rank, told the trainer's times."""

    local_rank: int = 0
    clock: TimelessClock = field(default_factory=TimelessClock)
    recorder: TallyRecorder = field(default_factory=TallyRecorder)

    def __post_init__(self) -> None:
        world = self.local_rank + 1
        spec = open_spec(topology=Topology(world, self.local_rank, world, self.local_rank))
        self.feed = asyncio.run(FakeBackend(FakeScript(), self.recorder).open(spec))
        self.hosted = ServedSession(self.feed, spec, self.recorder, self.clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run(self.feed.close())

    def tell(self, after_s: float, wall_s: float, wait_s: float) -> tuple[float, float]:
        """Report times after so many seconds; return the sums of both counters."""
        self.clock.now_s += after_s
        self.hosted.received(pb.StreamRequest(times=pb.TrainerTimes(wall_s=wall_s, wait_s=wait_s)))
        return self.recorder.total(metrics.TRAINER_SECONDS), self.recorder.total(metrics.TRAINER_WAIT)


def test_times_of_the_trainer_are_counted() -> None:
    """What has passed since the last report is added; a new pass starts at zero again."""
    with Told(local_rank=3) as told:
        assert told.tell(10.0, 8.0, 2.0) == (8.0, 2.0)
        assert told.tell(1.0, 9.0, 2.5) == (9.0, 2.5)
        assert told.tell(5.0, 4.0, 1.0) == (13.0, 3.5)
    assert told.recorder.total(metrics.TRAINER_WAIT, local_rank="3") == 3.5


def test_a_client_cannot_report_more_than_has_passed() -> None:
    """Wrong times and ranks make no large sums and no series without end."""
    with Told(local_rank=5000) as told:
        assert told.tell(2.0, 1e12, 1e12) == (2.0, 2.0)
    assert told.recorder.total(metrics.TRAINER_SECONDS, local_rank="63") == 2.0
