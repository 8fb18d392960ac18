"""Two requests for one range, in any interleaving: exact bytes or the right error, and nothing left running."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from feedd.errors import BadResponse, FeeddError, ObjectChanged, StoreUnavailable, Throttled
from feedd.fetch.hedge import HedgePolicy, Hedger, HedgeStore
from feedd.metrics import SOURCE_HEDGED_BYTES, SOURCE_HEDGES
from feedd.values import ByteRange, ReadProgress
from tests.budget import budget
from tests.fakes.memory_store import MemoryStore
from tests.fakes.sinks import into, write_to
from tests.fakes.tally import TallyRecorder
from tests.fakes.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

DATA = random.Random(3).randbytes(300)
SPAN = ByteRange(50, 250)
WANTED = DATA[SPAN.start : SPAN.end]
ERRORS = {
    "unavailable": StoreUnavailable,
    "throttled": Throttled,
    "changed": ObjectChanged,
    "refused": BadResponse,  # before a byte of it came
    "garbage": BadResponse,  # after bytes that are anybody's
}


@dataclass(frozen=True)
class Part:
    """What one request meets: pauses, each followed by so many bytes, and how it ends.

    One that is cancelled takes ``linger_s`` to stop, and writes more of the object meanwhile.
    """

    steps: tuple[tuple[float, int], ...] = ((0.1, 100), (0.1, 100))
    ending: str = "whole"
    linger_s: float = 0.0


class ScriptedStore(MemoryStore):
    """Reads as scripted, one script per request."""

    def __init__(self, *parts: Part) -> None:
        super().__init__()
        self.ref = self.put("key", DATA)
        self.parts = list(parts)
        self.spans: list[ByteRange] = []
        self.raised: list[FeeddError] = []
        self.running_count = 0

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        assert ref == self.ref
        assert progress is not None
        assert (progress.filled_bytes, progress.first_byte_s) == (0, None), "fresh for each call"
        part = self.parts[len(self.spans)]
        self.spans.append(span)
        self.running_count += 1
        try:
            for pause_s, count in part.steps:
                await asyncio.sleep(pause_s)
                self._fill(span, sink, progress, count)
            await self._end(part, span, sink, progress)
        except asyncio.CancelledError:
            await asyncio.sleep(part.linger_s)
            self._fill(span, sink, progress, 7)
            raise
        finally:
            self.running_count -= 1

    async def _end(self, part: Part, span: ByteRange, sink: RangeSink, progress: ReadProgress) -> None:
        if part.ending == "whole":
            self._fill(span, sink, progress, span.size_bytes)
            return
        if part.ending == "silent":
            await asyncio.sleep(1000)
        elif part.ending == "garbage":
            self._fill(span, sink, progress, 1)
            write_to(sink, 0, bytes(sink.size_bytes))
            progress.filled_bytes = 0
        elif part.ending == "refused":
            assert progress.first_byte_s is None, "a script that cannot be"
        error = ERRORS.get(part.ending, StoreUnavailable)(f"request {len(self.raised)}", stage="source")
        self.raised.append(error)
        raise error

    @staticmethod
    def _fill(span: ByteRange, sink: RangeSink, progress: ReadProgress, count: int) -> None:
        at = progress.filled_bytes
        count = min(count, span.size_bytes - at)
        if count and progress.first_byte_s is None:
            progress.first_byte_s = asyncio.get_running_loop().time()
        write_to(sink, at, DATA[span.start + at : span.start + at + count])
        progress.filled_bytes = at + count


class Outcome:
    """What a caller got."""

    def __init__(self) -> None:
        self.target = bytearray(b"\xee" * SPAN.size_bytes)
        self.progress = ReadProgress()
        self.recorder = TallyRecorder()
        self.error: BaseException | None = None


async def read(store: ScriptedStore, policy: HedgePolicy | None = None, cancel_after_s: float | None = None) -> Outcome:
    """Read the span through a hedger to whom 0.1 s to the first byte and another 0.2 s are usual."""
    loop, out = asyncio.get_running_loop(), Outcome()
    hedger = Hedger(policy)
    for _ in range(16):
        hedger.note(SPAN.size_bytes, 0.1, 0.3)
    hedged = HedgeStore(store, hedger, out.recorder, now_s=loop.time)
    reading = loop.create_task(hedged.read_into(store.ref, SPAN, into(out.target), out.progress))
    await asyncio.wait([reading], timeout=cancel_after_s)
    reading.cancel()
    await asyncio.wait([reading])
    assert store.running_count == 0, "nobody writes any more"
    out.error = asyncio.CancelledError() if reading.cancelled() else reading.exception()
    return out


def check_exact(out: Outcome, store: ScriptedStore) -> None:
    """Check that the bytes are there, and said to be."""
    assert out.error is None
    assert out.target == WANTED
    assert out.progress.filled_bytes == SPAN.size_bytes
    assert 1 <= len(store.spans) <= 2


LATE = Part(steps=((5.0, 100),))
STALLS = Part(steps=((0.1, 60),), ending="silent")
GOOD = Part()


@pytest.mark.parametrize(("first", "asked"), [(LATE, 200), (STALLS, 140)], ids=["late", "stalls"])
def test_second_wins(first: Part, asked: int) -> None:
    """Only what is missing is asked for again, from where the first one is, and that is counted."""
    store = ScriptedStore(first, GOOD)
    out = run_virtually(read(store))
    check_exact(out, store)
    assert store.spans == [SPAN, ByteRange(SPAN.end - asked, SPAN.end)]
    assert out.recorder.total(SOURCE_HEDGES, outcome="won") == 1
    assert out.recorder.total(SOURCE_HEDGED_BYTES) == asked


def test_first_wins_after_all() -> None:
    """A first request that is whole before the second wins, and that is counted, too."""
    store = ScriptedStore(Part(steps=((0.8, 200),)), LATE)
    out = run_virtually(read(store))
    check_exact(out, store)
    assert len(store.spans) == 2
    assert out.recorder.total(SOURCE_HEDGES, outcome="lost") == 1


def test_the_hedger_learns_which_hedges_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that was sent is reported once, by who was whole first; one of two failures is no outcome."""
    outcomes: list[bool] = []
    monkeypatch.setattr(Hedger, "hedged", lambda _, *, won: outcomes.append(won))
    check_exact(run_virtually(read(store := ScriptedStore(LATE, GOOD))), store)
    check_exact(run_virtually(read(store := ScriptedStore(Part(steps=((0.8, 200),)), LATE))), store)
    check_exact(run_virtually(read(store := ScriptedStore(GOOD))), store)
    failing = Part(steps=((1.0, 10),), ending="unavailable")
    assert isinstance(run_virtually(read(ScriptedStore(failing, failing))).error, StoreUnavailable)
    assert outcomes == [True, False]


def test_no_second_without_need_or_means() -> None:
    """Neither a request that is as usual nor one that cannot be afforded gets a second."""
    for store, policy in ((ScriptedStore(GOOD), None), (ScriptedStore(LATE), HedgePolicy(saved_bytes=0))):
        out = run_virtually(read(store, policy))
        check_exact(out, store)
        assert len(store.spans) == 1
        assert out.recorder.total(SOURCE_HEDGES) == 0


def test_failure_before_a_second_is_raised_at_once() -> None:
    """Whoever is above decides about errors: a failed request is not hedged, and what came is told."""
    store = ScriptedStore(Part(steps=((0.1, 70),), ending="unavailable"))
    out = run_virtually(read(store))
    assert out.error is store.raised[0]
    assert out.progress.filled_bytes == 70
    assert len(store.spans) == 1


def test_one_failure_of_two_is_survived() -> None:
    """Whichever of two requests fails, the other is waited for; when both did, the first one's error is raised."""
    fails = Part(steps=((0.8, 20),), ending="unavailable")
    fails_later = Part(steps=((1.5, 20),), ending="changed")
    for pair in ((fails, Part(steps=((2.0, 200),))), (Part(steps=((3.0, 200),)), fails)):
        store = ScriptedStore(*pair)
        check_exact(run_virtually(read(store)), store)
    store = ScriptedStore(fails, fails_later)
    out = run_virtually(read(store))
    assert isinstance(out.error, StoreUnavailable)
    assert out.progress.filled_bytes == 20


def test_throttled_second_stops_hedging() -> None:
    """A store that throttles a second request gets none for a while."""

    async def twice() -> None:
        store = ScriptedStore(LATE, Part(steps=(), ending="throttled"), Part(steps=((0.7, 200),)))
        hedger = Hedger()
        for _ in range(16):
            hedger.note(SPAN.size_bytes, 0.1, 0.3)
        hedged = HedgeStore(store, hedger, TallyRecorder(), now_s=asyncio.get_running_loop().time)
        for _ in range(2):
            await hedged.read_into(store.ref, SPAN, into(bytearray(SPAN.size_bytes)))
        assert len(store.spans) == 3

    run_virtually(twice())


def test_everything_else_goes_through() -> None:
    """Listings, heads, checksums and empty reads are the inner store's."""

    async def ask() -> None:
        store = ScriptedStore(Part(steps=()))
        hedged = HedgeStore(store, Hedger(), TallyRecorder())
        assert [page async for page in hedged.list("")] == [[store.ref]]
        assert await hedged.head("key") == store.ref
        assert await hedged.checksum(store.ref) is None
        await hedged.read_into(store.ref, ByteRange(5, 5), into(bytearray()), ReadProgress())
        assert hedged.root == store.root
        assert repr(hedged) == "HedgeStore(MemoryStore(s3://memory))"
        await hedged.close()

    run_virtually(ask())


PAUSES = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.6, 2.0])
STEPS = st.lists(st.tuples(PAUSES, st.sampled_from([0, 1, 40, 100, 199])), max_size=4).map(tuple)
ENDINGS = st.sampled_from(["whole", "whole", "whole", "silent", "unavailable", "throttled", "changed", "garbage"])
LINGERS = st.sampled_from([0.0, 0.0, 0.1, 1.0])
PARTS = st.builds(Part, STEPS, ENDINGS, LINGERS) | st.builds(
    Part, PAUSES.map(lambda pause_s: ((pause_s, 0),)), st.just("refused"), LINGERS
)


@given(PARTS, PARTS, st.none() | st.floats(0, 4))
@settings(max_examples=budget(400), deadline=None)
def test_any_interleaving(first: Part, second: Part, cancel_after_s: float | None) -> None:
    """Exact bytes, or the error that tells why not with a truth about the prefix; nobody writes on, no task is left."""
    store = ScriptedStore(first, second)
    out = run_virtually(read(store, cancel_after_s=cancel_after_s))
    endings: Sequence[str] = [part.ending for part in store.parts[: len(store.spans)]]
    event(f"{len(endings)} requests, {type(out.error).__name__}")
    assert out.recorder.total(SOURCE_HEDGES) == len(endings) - 1
    if out.error is None:
        check_exact(out, store)
        assert "whole" in endings
        return
    if isinstance(out.error, asyncio.CancelledError):
        assert cancel_after_s is not None
        return
    assert out.error in store.raised
    assert out.target[: out.progress.filled_bytes] == WANTED[: out.progress.filled_bytes]
    if isinstance(out.error, BadResponse) and "garbage" in endings:
        return
    assert "whole" not in endings, "one that became whole is enough"
    assert type(out.error) is ERRORS.get(endings[0], StoreUnavailable), "the first one's error"
