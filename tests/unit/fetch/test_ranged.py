"""The parallel range fetcher: order, bounds, clean-up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadResponse, NotFound, PermissionDenied, StoreUnavailable
from feedd.fetch.ranged import FetchLimits, RangeFetcher
from feedd.flow.budget import ByteBudget
from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from feedd.values import ObjectChecksum
from tests.budget import PATIENT_S
from tests.fakes.memory_store import MemoryStore
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectRef, ReadProgress


class GatedStore(MemoryStore):
    """A store whose reads wait at a gate, and which remembers their order."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.failing: dict[int, Exception] = {}

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Nothing is kept."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        self.begun.append((ref.key, span.start))
        await self.gate.wait()
        if span.start in self.failing:
            raise self.failing[span.start]
        await super().read_into(ref, span, sink)


def fetcher_over(store: MemoryStore, recorder: TallyRecorder, parts: int = 2, budget_bytes: int = 1000) -> RangeFetcher:
    """Make a fetcher with parts of ten bytes."""
    return RangeFetcher(lambda _: store, ByteBudget(budget_bytes), recorder, FetchLimits(10, parts))


async def test_parts_of_earlier_shards_go_first() -> None:
    """Parts stand in one line over all shards, in the order the fetches began, so many at a time."""
    store, recorder = GatedStore(), TallyRecorder()
    fetcher = fetcher_over(store, recorder, parts=3)
    refs = [store.put(key, bytes(25)) for key in ("b", "a")]
    async with asyncio.TaskGroup() as tasks:
        for ref in refs:
            tasks.create_task(fetcher.fetch(ref, into(bytearray(25))))
        for _ in range(10):
            await asyncio.sleep(0)
        assert store.begun == [("b", 0), ("b", 10), ("b", 20)]
        store.gate.set()
    assert store.begun == [(key, start) for key in ("b", "a") for start in (0, 10, 20)]
    assert recorder.peaks[FETCH_PARTS.name] <= 3
    assert recorder.total(FETCH_PARTS) == recorder.total(FETCH_BYTES) == 0


async def test_bytes_in_flight_are_bounded() -> None:
    """The budget bounds bytes over all shards, and one part gets through however small it is."""
    store, recorder = MemoryStore(), TallyRecorder()
    refs = [store.put(str(index), bytes([index]) * 95) for index in range(5)]
    for budget_bytes, peak in ((25, 25), (3, 10)):
        fetcher = fetcher_over(store, recorder, parts=50, budget_bytes=budget_bytes)
        targets = [bytearray(95) for _ in refs]
        await asyncio.gather(*(fetcher.fetch(ref, into(t)) for ref, t in zip(refs, targets, strict=True)))
        assert [bytes(target) for target in targets] == [bytes([index]) * 95 for index in range(5)]
        assert recorder.peaks[FETCH_BYTES.name] <= peak
        recorder.peaks.clear()


class FailingStore(GatedStore):
    """A store that fails to tell the checksum of ``a``, but not before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = asyncio.Event()

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        if ref.key == "a":
            await self.fails.wait()
            raise StoreUnavailable("expected a checksum, got none")
        return None


async def test_a_place_is_not_lost_with_a_fetch_that_fails_meanwhile() -> None:
    """A place that comes free in the same turn of the loop in which the next in the line fails goes to who follows."""
    store, recorder = FailingStore(), TallyRecorder()
    fetcher = RangeFetcher(lambda _: store, ByteBudget(1000), recorder, FetchLimits(10, 1, verified=True))
    first, failing, last = (store.put(key, key.encode() * 10) for key in ("b", "a", "c"))
    tasks = [asyncio.ensure_future(fetcher.fetch(ref, into(bytearray(10)))) for ref in (first, failing, last)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert store.begun == [("b", 0)]
    store.fails.set()
    store.gate.set()
    async with asyncio.timeout(PATIENT_S):
        await asyncio.wait(tasks)
    assert [type(task.exception()) for task in tasks] == [type(None), StoreUnavailable, type(None)]
    assert store.begun == [("b", 0), ("c", 0)]
    assert recorder.total(FETCH_PARTS) == recorder.total(FETCH_BYTES) == 0


async def test_failure_that_lasts_is_told_first() -> None:
    """Of several failures the one that cannot pass is raised, alone, and the gauges return to zero."""
    store, recorder = GatedStore(), TallyRecorder()
    ref = store.put("x", bytes(50))
    store.failing = {0: StoreUnavailable("passes"), 10: NotFound("lasts"), 20: StoreUnavailable("passes")}
    store.gate.set()
    with pytest.raises(NotFound, match="lasts"):
        await fetcher_over(store, recorder, parts=5).fetch(ref, into(bytearray(50)))
    assert recorder.total(FETCH_PARTS) == recorder.total(FETCH_BYTES) == 0


async def test_other_fetches_survive_a_failure() -> None:
    """A shard that fails takes only its own parts down."""
    store, recorder = GatedStore(), TallyRecorder()
    fetcher = fetcher_over(store, recorder)
    bad, good = store.put("bad", bytes(50)), store.put("good", b"g" * 15)
    store.failing = {30: NotFound("gone")}
    store.gate.set()
    target = bytearray(15)
    results = await asyncio.gather(
        fetcher.fetch(bad, into(bytearray(50))),
        fetcher.fetch(good, into(target)),
        return_exceptions=True,
    )
    assert isinstance(results[0], NotFound)
    assert target == b"g" * 15


async def test_empty_object_asks_nothing() -> None:
    """An object of zero bytes is fetched without a request."""
    store = GatedStore()
    await fetcher_over(store, TallyRecorder()).fetch(store.put("x", b""), into(bytearray()))
    assert store.begun == []


class Watch:
    """A watch that says how urgent it is."""

    def __init__(self, urgency: float) -> None:
        self.now = urgency

    def urgency(self) -> float:
        return self.now

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        pass


async def test_a_freed_place_goes_to_the_most_urgent() -> None:
    """Who is most urgent when a place frees gets it, whoever came first; parts of one object go in order."""
    store = GatedStore()
    fetcher = fetcher_over(store, TallyRecorder(), parts=1)
    first, second, third = Watch(5), Watch(9), Watch(7)
    refs = [store.put(key, bytes(20)) for key in "abc"]
    async with asyncio.TaskGroup() as tasks:
        for ref, watch in zip(refs, (first, second, third), strict=True):
            tasks.create_task(fetcher.fetch(ref, into(bytearray(20)), watch))
        for _ in range(5):
            await asyncio.sleep(0)
        second.now = 1
        store.gate.set()
    assert store.begun == [("a", 0), ("b", 0), ("b", 10), ("a", 10), ("c", 0), ("c", 10)]


@pytest.mark.slow
async def test_a_huge_object_is_cut_as_it_goes() -> None:
    """An object of many parts has only as many tasks as parts in flight."""
    store = GatedStore()
    ref = store.put("x", bytes(30_000))
    before = len(asyncio.all_tasks())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fetcher_over(store, TallyRecorder(), parts=4).fetch(ref, into(bytearray(30_000))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) - before <= 1 + 4
        store.gate.set()
    assert len(store.begun) == 3_000


async def test_cancelled_before_the_first_step() -> None:
    """A fetch whose parts were given places and never ran a step hands the places on."""
    store, recorder = GatedStore(), TallyRecorder()
    fetcher = fetcher_over(store, recorder, parts=2, budget_bytes=20)
    doomed, other = store.put("doomed", bytes(50)), store.put("other", b"o" * 50)
    task = asyncio.get_running_loop().create_task(fetcher.fetch(doomed, into(bytearray(50))))
    await asyncio.sleep(0)
    assert recorder.total(FETCH_PARTS) == 2
    assert store.begun == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    target = bytearray(50)
    await fetcher.fetch(other, into(target))
    assert target == b"o" * 50
    assert recorder.total(FETCH_PARTS) == recorder.total(FETCH_BYTES) == 0


class AskedStore(MemoryStore):
    """A store that answers questions for checksums from a list."""

    def __init__(self, *answers: ObjectChecksum | Exception) -> None:
        super().__init__()
        self.answers = list(answers)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Answer or raise, in turn."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_checksums_out_of_reach() -> None:
    """Where checksums may not be seen objects are taken unverified, and each is asked for only once more."""
    store = AskedStore(*[PermissionDenied("no")] * 3)
    fetcher = RangeFetcher(lambda _: store, ByteBudget(100), TallyRecorder(), FetchLimits(10, 2, verified=True))
    for key in "ab":
        target = bytearray(15)
        await fetcher.fetch(store.put(key, b"x" * 15), into(target))
        assert target == b"x" * 15
    assert not store.answers


async def test_a_failed_question_fails_the_fetch() -> None:
    """An object whose checksum cannot be asked for because the store is down is not taken on trust."""
    store = AskedStore(StoreUnavailable("down"))
    fetcher = RangeFetcher(lambda _: store, ByteBudget(100), TallyRecorder(), FetchLimits(10, 2, verified=True))
    with pytest.raises(StoreUnavailable, match="down"):
        await fetcher.fetch(store.put("a", bytes(15)), into(bytearray(15)))


class LateStore(MemoryStore):
    """A store that fails to tell a checksum, long after the parts have come."""

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Fail after some turns of the loop."""
        for _ in range(50):
            await asyncio.sleep(0)
        raise StoreUnavailable(f"no checksum of {ref.key}")


async def test_a_question_that_fails_last_is_no_cancellation() -> None:
    """Where the checksum fails after all parts have come, the caller gets that error and is not cancelled."""
    store = LateStore()
    fetcher = RangeFetcher(lambda _: store, ByteBudget(100), TallyRecorder(), FetchLimits(10, 2, verified=True))
    with pytest.raises(StoreUnavailable, match="no checksum of a"):
        await fetcher.fetch(store.put("a", bytes(15)), into(bytearray(15)))
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_refused_question_is_asked_again() -> None:
    """A question refused while the object itself came is asked again, and its answer believed."""
    store = AskedStore(PermissionDenied("no"), ObjectChecksum("crc32c", bytes(4)))
    fetcher = RangeFetcher(lambda _: store, ByteBudget(100), TallyRecorder(), FetchLimits(10, 2, verified=True))
    with pytest.raises(BadResponse, match="crc32c"):
        await fetcher.fetch(store.put("a", b"x" * 15), into(bytearray(15)))
