"""Listing a bucket in a thread of its own: parsing millions of keys must not hold the daemon's loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from feedd.errors import Unsupported
from feedd.source.s3 import contents
from feedd.source.s3.client import S3Clients
from feedd.source.threaded import iterate_in_thread
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Mapping

    from feedd.source.options import SourceOptions
    from feedd.source.s3.errors import Asked

_PAGES_AHEAD_COUNT = 8


async def list_pages(
    bucket: str, asked: Asked, limits: SourceOptions, start_after: str
) -> AsyncGenerator[list[ObjectRef], None]:
    """Yield non-empty pages of the keys under ``asked.url`` that come after ``start_after``.

    Folder markers (zero bytes, key ending in ``/``) are left out. The thread is gone when the generator is closed.

    Raises:
        Unsupported: the store lists out of order.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """

    def make() -> AsyncGenerator[list[ObjectRef], None]:
        return _answers(bucket, asked, limits, start_after)

    pages = iterate_in_thread(make, name=f"feedd-list-{bucket}", ahead_count=_PAGES_AHEAD_COUNT)
    async with contextlib.aclosing(pages):
        async for page in pages:
            yield page


async def _answers(
    bucket: str, asked: Asked, limits: SourceOptions, start_after: str
) -> AsyncGenerator[list[ObjectRef], None]:
    """Run in the thread: ask for page after page, with a client of this loop."""
    s3, root = limits.for_bucket(bucket), f"s3://{bucket}"
    prefix = asked.url.removeprefix(f"{root}/")
    query = {"Bucket": bucket, "Prefix": prefix}
    if s3.requester_pays:
        query["RequestPayer"] = "requester"
    if start_after:
        query["StartAfter"] = start_after
    order = _Order(asked, start_after)

    async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
        client.meta.events.register(contents.EVENT, contents.take, unique_id=contents.EVENT)
        answer: Mapping[str, Any] = await client.list_objects_v2(**query)
        return answer

    async with contextlib.aclosing(S3Clients(s3, limits)) as clients, _OneAhead() as ahead:
        answer = await clients.call(ask, asked, limits.listing_deadline_s)
        while True:
            token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
            if token:
                query["ContinuationToken"] = token
                await ahead.begin(clients.call(ask, asked, limits.listing_deadline_s))
            refs = [
                ObjectRef(root, one.key, one.size_bytes, one.etag.removeprefix("W/").strip('"'))
                for one in contents.objects_of(answer)
            ]
            wanted = order.keep(refs)
            if wanted:
                yield wanted
            if not token:
                return
            answer = await ahead.end()


class _OneAhead:
    """The next answer on its way while the last is read; none is left behind."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Mapping[str, Any]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # of a page that nobody wants any more

    async def begin(self, asking: Coroutine[Any, Any, Mapping[str, Any]]) -> None:
        """Have it ask, at once."""
        self._task = asyncio.create_task(asking)
        await asyncio.sleep(0)  # until it waits for the store

    async def end(self) -> Mapping[str, Any]:
        """Return what it got.

        Raises what it raised.
        """
        assert self._task is not None, "nothing was asked for"
        answer = await self._task
        self._task = None
        return answer


class _Order:
    """Verifies that keys rise in UTF-8 byte order, across pages; drops folder markers and what came before."""

    def __init__(self, asked: Asked, start_after: str) -> None:
        self._asked = asked
        self._start_after = start_after
        self._last = ""

    def keep(self, refs: list[ObjectRef]) -> list[ObjectRef]:
        """Return the refs wanted; order is checked on all of them."""
        for ref in refs:
            # str compares by code point, which is the order of UTF-8 bytes
            if ref.key <= self._last:
                raise Unsupported(
                    f"expected keys in byte order, got {ref.key!r} after {self._last!r}",
                    object=self._asked.url,
                    hint="this store lists out of order (S3 directory buckets do): name the objects in a manifest",
                    stage="source",
                )
            self._last = ref.key
        return [ref for ref in refs if ref.key > self._start_after and (ref.size_bytes or ref.key[-1:] != "/")]
