"""Requests the pages of a listing: at first one after another, of long listings several ranges of keys at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd.errors import BadResponse, FeeddError, Unsupported
from feedd.fetch.s3.key_ranges import KeyRanges
from feedd.fetch.s3.listing_contents import Page

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from feedd.fetch.s3.key_ranges import KeyRange

    Ask = Callable[[Mapping[str, str]], Coroutine[object, object, Page]]
    """Sends a request for a page with these arguments besides bucket and prefix."""

IN_FLIGHT_MAX: Final = 16
"""Pages of a listing that are requested at the same time."""

_BUFFERED_MAX: Final = 4096
"""Compressed pages that wait for earlier ones, some 30 KB each. With more, only the first range is listed."""


_END: Final = Page(b"", "", 0, "", "", truncated=False, token="")
_V1_HINT: Final = "the store has only ListObjects V1: name the objects in a manifest (manifest+s3://)"


@dataclass(slots=True, eq=False)
class _Stand:
    """How far a range is.

    Attributes:
        token: continues after the latest page; empty: the range begins, or goes on after its last key.
        more: the store has more keys after the latest page.
        tokens: tokens since the latest page that had keys.
        pages: pages that wait for earlier ranges.
        failed: the latest request failed.
        doubted: the last key after which the listing seemed to end with an empty page; empty: there was none.
    """

    token: str = ""
    more: bool = False
    tokens: set[str] = field(default_factory=set)
    pages: deque[Page] = field(default_factory=deque)
    failed: bool = False
    doubted: str = ""

    def follow(self, page: Page, position: str) -> None:
        """Take over how the listing goes on after a page.

        A truncated page promises keys. An empty last page after it may come from a server that does not know the
        token, so the keys after the last one are requested without it.

        Args:
            page: the page.
            position: the last key of the range before this page; empty: there is none.

        Raises:
            BadResponse: the page leads nowhere.
            Unsupported: the store gives no token, and ignores where a listing shall begin.
        """
        if self.token and position not in {"", self.doubted} and not page.first and not page.truncated:
            self.token, self.more, self.doubted, self.tokens = "", True, position, set()
            return
        if position and not self.token and page.first and page.first <= position:
            message = "expected keys after the last one, got earlier keys: a truncated page had no continuation token"
            raise Unsupported(message, hint=_V1_HINT, stage="source")
        if page.truncated and not page.token and not page.first:
            message = "expected keys or a continuation token in a truncated page, got neither"
            raise BadResponse(message, hint=_V1_HINT, stage="source")
        if page.truncated and page.token and page.token in self.tokens | {self.token}:
            message = "expected a new continuation token, got one that was used before"
            raise BadResponse(message, hint="the listing would never end", stage="source")
        self.tokens = {page.token} if page.first else self.tokens | {page.token}
        self.token, self.more = page.token, page.truncated


class RangeListing:
    """One listing. All methods run on one loop.

    Args:
        ask: sends a request.
        prefix: prefix of the listing.
        start_after: the listing begins after this key.
        in_flight_max: bound on concurrent requests; 1: one page after another.
        sorts: the store lists in the order of keys, and can begin after a key.
    """

    def __init__(
        self, ask: Ask, prefix: str, start_after: str, in_flight_max: int = IN_FLIGHT_MAX, *, sorts: bool = True
    ) -> None:
        self._ask, self._sorts = ask, sorts
        self._ranges = KeyRanges(prefix, start_after)
        self._in_flight_max = in_flight_max
        self._stands: dict[KeyRange, _Stand] = {}
        self._tasks: dict[asyncio.Task[Page], KeyRange] = {}
        self._ending: list[asyncio.Task[Page]] = []
        self._root = self._ranges.ranges[0]
        self._confirmed = False  # the store begins pages where they are asked to begin
        self._buffered_count = 0

    async def pages(self) -> AsyncGenerator[tuple[Page, str | None], None]:
        """Yield all pages in the order of their keys, each with the last key that belongs to it; None: all do.

        Raises:
            FeeddError: what ``ask`` raised for the first range that is not complete, or its pages lead nowhere.
        """
        try:
            while self._ranges.ranges:
                self._begin()
                if self._tasks:
                    ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        if (one := self._tasks.pop(task, None)) is not None:
                            self._take(one, task)
                while (found := self._next()) is not None:
                    yield found
        finally:
            await self._cancel()

    def _begin(self) -> None:
        """Request a page of each open range, of the first one above all, and split ranges while there is room."""
        busy = set(self._tasks.values())
        for number, one in enumerate(self._ranges.ranges):
            waits = number and (self._stand(one).failed or self._buffered_count >= _BUFFERED_MAX)
            if one.done or one in busy or waits or (number and len(self._tasks) >= self._in_flight_max):
                continue
            self._request(one)
        while len(self._tasks) < self._in_flight_max and self._buffered_count < _BUFFERED_MAX:
            if not self._confirmed and len(self._ranges.ranges) > 1:
                return
            new = self._ranges.split()
            if new is None:
                return
            self._request(new)

    def _request(self, one: KeyRange) -> None:
        stand = self._stand(one)
        after = one.position or one.after
        query = {"ContinuationToken": stand.token} if stand.token else {"StartAfter": after} if after else {}
        # ``pages`` waits for the end of each
        self._tasks[asyncio.get_running_loop().create_task(self._ask(query))] = one

    def _take(self, one: KeyRange, task: asyncio.Task[Page]) -> None:
        """Take over the end of a request."""
        stand, first = self._stand(one), self._ranges.ranges[0] is one
        try:
            page = task.result()
            if stand.doubted == one.position and page.first and page.first <= one.position:
                page = _END  # the store ignores where to begin, and can say no more
            stand.follow(page, one.position if self._sorts else "")
        except FeeddError:
            # The store may be asked for too much. The range waits until it is the first, and is then requested again.
            self._in_flight_max = max(1, self._in_flight_max // 2)
            if first:
                raise
            stand.failed = True
            if not self._confirmed:
                self._serially()
            return
        stand.failed = False
        if one is not self._root and not one.answered:
            if page.first and page.first <= one.after:
                self._serially()
                return
            self._confirmed = True
        self._ranges.listed(one, page.first, page.last, more=stand.more)
        if page.first:
            stand.pages.append(page if first else page.squeezed())
            self._buffered_count += 1

    def _serially(self) -> None:
        """Go on with the first range alone: the store ignores where a listing shall begin."""
        self._in_flight_max = 1
        self._ending = [task for task, one in self._tasks.items() if one is not self._root]
        for task in self._ending:
            task.cancel()
            del self._tasks[task]
        self._root.end, self._root.done = None, self._root.answered and not self._stand(self._root).more
        self._ranges.ranges[:] = [one for one in self._ranges.ranges if one is self._root]  # none: it had all keys

    def _next(self) -> tuple[Page, str | None] | None:
        """Return the next page in the order of keys, or None if it is not listed yet."""
        while self._ranges.ranges:
            one = self._ranges.ranges[0]
            stand = self._stand(one)
            held = not self._confirmed and one.end is not None and one.position >= one.end
            if held:
                return None  # without ranges, more of the page belongs to it
            if stand.pages:
                self._buffered_count -= 1
                return stand.pages.popleft(), one.end
            if not one.done:
                return None
            del self._ranges.ranges[0]
            self._stands.pop(one, None)
        return None

    def _stand(self, one: KeyRange) -> _Stand:
        return self._stands.setdefault(one, _Stand())

    async def _cancel(self) -> None:
        tasks, self._tasks = [*self._tasks, *self._ending], {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(FeeddError, asyncio.CancelledError):
                await task
