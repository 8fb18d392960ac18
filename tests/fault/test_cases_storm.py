"""Case 2: a store in trouble is not sent more than it can take, however many readers there are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import Throttled
from feedd.fetch.retry import QuotaPolicy, RetryLimits, RetryPolicy, RetryQuota, RetryStore
from feedd.metrics import SOURCE_RETRIES
from feedd.values import ByteRange, ObjectRef
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder
from tests.fakes.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.range_sink import RangeSink
    from feedd.values import ReadProgress

READERS = 100
ANSWER_S = 0.01
REF = ObjectRef("s3://bucket", "key", 10, "etag")
PROBES_PER_S = 4  # at most: the first waits of a quota that has nothing left
UNLIMITED = QuotaPolicy(share=1.0, initial=1e9, balance_max=1e9)


class LoopClock:
    """The time of the loop."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_s(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


@dataclass
class Store:
    """Answers at once; ``refuses`` says of each request, by its number and the time, whether with SlowDown."""

    refuses: Callable[[int, float], bool]
    asked: int = 0
    refused: int = 0
    root: str = "s3://bucket"

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Answer."""
        self.asked += 1
        number = self.asked
        await asyncio.sleep(ANSWER_S)
        if self.refuses(number, asyncio.get_running_loop().time()):
            self.refused += 1
            raise Throttled("expected an answer, got SlowDown")


@dataclass(frozen=True)
class Outcome:
    """What a store saw, and how long it took until all was read."""

    store: Store
    retries: float
    took_s: float

    @property
    def good(self) -> int:
        """Requests that went well."""
        return self.store.asked - self.store.refused


def _read(policy: QuotaPolicy, refuses: Callable[[int, float], bool], reads: int) -> Outcome:
    """Have all readers read one after another until that many reads are done."""
    recorder = TallyRecorder()

    async def main() -> Outcome:
        store, begin_s = Store(refuses), asyncio.get_running_loop().time()
        chances = iter(range(1 << 40))
        retrying = RetryStore(
            store,  # type: ignore[arg-type]  # as much of one as is asked for
            RetryLimits(RetryPolicy(), quota=RetryQuota(policy)),
            LoopClock(),
            recorder,
            chance=lambda: (next(chances) * 0.618) % 1.0,
        )

        async def reader() -> None:
            for _ in range(reads // READERS):
                await retrying.read_into(REF, ByteRange(0, 10), into(bytearray(10)))

        await asyncio.gather(*(reader() for _ in range(READERS)))
        took_s = asyncio.get_running_loop().time() - begin_s
        return Outcome(store, recorder.total(SOURCE_RETRIES), took_s)

    return run_virtually(main())


def test_case_02_no_storm_of_many_readers() -> None:
    """While a store refuses everything for a minute it hears each reader once, what was saved up, and then probes."""
    end_s = 1060.0  # virtual time begins at 1,000

    def down(_number: int, now_s: float) -> bool:
        return now_s < end_s

    policy = QuotaPolicy()
    outcome = _read(policy, down, READERS)
    probes = 60 / policy.probe_max_s + 5  # doubling from a quarter of a second on
    assert outcome.store.refused <= READERS + policy.initial + probes
    assert outcome.took_s >= 60
    assert _read(UNLIMITED, down, READERS).store.refused > 3 * READERS, "what they would do without a quota"


def test_case_02_retries_are_a_tenth_of_what_goes_well() -> None:
    """Where half of all answers are refusals, retries are a tenth of the good ones, the first few and probes."""

    def every_other(number: int, _now_s: float) -> bool:
        return number % 2 == 0

    policy = QuotaPolicy()
    outcome = _read(policy, every_other, 10 * READERS)
    assert outcome.good == 10 * READERS
    assert outcome.retries <= policy.share * outcome.good + policy.initial + PROBES_PER_S * outcome.took_s
    free = _read(UNLIMITED, every_other, 10 * READERS)
    assert free.retries > policy.share * free.good + policy.initial + PROBES_PER_S * free.took_s
