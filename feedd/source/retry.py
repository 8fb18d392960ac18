"""A store that tries again where trying again can help."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from feedd.errors import FeeddError
from feedd.flow.retry import RetryPolicy, retrying
from feedd.metrics import SOURCE_RETRIES
from feedd.source.pages import closing_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from feedd.protocols import Clock, ObjectStore, Recorder
    from feedd.values import ByteRange, ObjectChecksum, ObjectRef, ReadProgress


class RetryStore:
    """Wraps every request in ``flow.retry``; a listing that breaks off goes on after its last key."""

    def __init__(
        self,
        inner: ObjectStore,
        policy: RetryPolicy,
        clock: Clock,
        recorder: Recorder,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._policy = policy
        self._clock = clock
        self._recorder = recorder
        self._chance = chance

    def __repr__(self) -> str:
        return f"RetryStore({self._inner!r})"

    @property
    def root(self) -> str:
        """Root of the inner store."""
        return self._inner.root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the inner store's pages, none twice; attempts are counted from the last good page on."""
        last, attempt = start_after, 0
        while True:
            try:
                async with closing_pages(self._inner.list(prefix, last)) as pages:
                    async for page in pages:
                        last, attempt = page[-1].key, 0
                        yield page
            except FeeddError as error:
                attempt += 1
                delay_s = self._policy.delay_s(error, attempt, self._chance())
                if delay_s is None:
                    raise
                self._note(error, delay_s)
            else:
                return
            await self._clock.sleep_s(delay_s)

    async def head(self, key: str) -> ObjectRef:
        """Ask the inner store until it answers or the policy gives up."""
        return await retrying(
            self._policy, self._clock, lambda: self._inner.head(key), chance=self._chance, on_retry=self._note
        )

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Ask the inner store until it answers or the policy gives up; see ``ObjectStore.checksum``."""
        return await retrying(
            self._policy, self._clock, lambda: self._inner.checksum(ref), chance=self._chance, on_retry=self._note
        )

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, target: memoryview, progress: ReadProgress | None = None
    ) -> None:
        """Read from the inner store until the range is there or the policy gives up."""
        await retrying(
            self._policy,
            self._clock,
            lambda: self._inner.read_into(ref, span, target, progress),
            chance=self._chance,
            on_retry=self._note,
        )

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()

    def _note(self, error: FeeddError, _delay_s: float) -> None:
        self._recorder.count(SOURCE_RETRIES, reason=error.kind)
