"""What a client reports of the trainer's loop, in the list of sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pytest

from feedd import metrics
from feedd.serve.served_session import ServedSession
from feedd.serve.server_options import ServeOptions
from feedd.values import Topology
from feedd.wire import feedd_pb2 as pb
from tests.fakes.backend import FakeBackend, FakeScript
from tests.fakes.specs import open_spec
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
from tests.unit.serve.raw_client import WAIT_S, attach, release, serving

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


async def test_times_come_after_all_batches_were_sent(short_dir: Path) -> None:
    """An epoch whose batches fit into the slots is sent at once; its trainer tells times, and returns slots."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), linger_s=0.0)
    async with serving(short_dir, FakeScript(steps=2), options) as rig:
        opened = await rig.open(prefetch_batches=3)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=3)
        while stream.end is None:
            assert await stream.read()
        await asyncio.sleep(0.05)
        await stream.send(times=pb.TrainerTimes(steps=2), releases=[release(stream.batches[0])])
        await rig.until(lambda: rig.recorder.total(metrics.SERVE_LEASES) == 1)
        (entry,) = (await rig.admin.Sessions(pb.SessionsRequest())).sessions
        assert (entry.times.steps, entry.leases) == (2, 1)
        await stream.finish()
        arena.close()


async def test_a_drain_does_not_wait_for_the_batches_in_slots(short_dir: Path) -> None:
    """A daemon that ends closes a stream that has sent all, however long the trainer takes its batches."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), linger_s=WAIT_S)
    async with serving(short_dir, FakeScript(steps=2), options) as rig:
        stream = await rig.stream((await rig.open()).session_id, credits=3, inline_only=True)
        while stream.end is None:
            assert await stream.read()
        async with asyncio.timeout(WAIT_S):
            await rig.server.drain(0.0)
        assert not await stream.read()


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
