"""Lists a bucket off the event loop, which millions of keys would block: one thread requests pages, others parse."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from feedd.errors import BadResponse, Unsupported
from feedd.fetch.s3 import listing_contents as contents
from feedd.fetch.s3.sdk_client import S3Clients
from feedd.fetch.threaded import iterate_in_thread
from feedd.flow.pools import CPU
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.region import BucketFacts
    from feedd.fetch.s3.sdk_errors import RequestContext

_PAGES_AHEAD_COUNT = 8


async def list_pages(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[list[ObjectRef], None]:
    """Yield non-empty pages of the keys under ``request.url`` that come after ``start_after``.

    Folder markers (zero bytes, key ending in ``/``) are left out. The thread has ended when the generator is closed.

    Raises:
        Unsupported: the store lists out of order.
        BadResponse: an object has no key, size or etag.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """

    def make() -> AsyncGenerator[Mapping[str, Any], None]:
        return _answers(bucket, request, limits, start_after, facts)

    root, order = f"s3://{bucket}", _Order(request, start_after)
    answers = iterate_in_thread(make, name=f"feedd-list-{bucket}", ahead_count=_PAGES_AHEAD_COUNT)
    async with contextlib.aclosing(answers):
        async for answer in answers:  # the next page is being requested meanwhile
            try:
                wanted = await CPU.run(_page, answer, root, order)
            except BadResponse as error:
                error.object = request.url  # the page's parser does not know the URL
                raise
            if wanted:
                yield wanted


async def _answers(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Request page after page, with a client of the thread's own loop; runs in the thread."""
    s3 = limits.for_bucket(bucket)
    query = {"Bucket": bucket, "Prefix": request.url.removeprefix(f"s3://{bucket}/")}
    if s3.requester_pays:
        query["RequestPayer"] = "requester"
    if start_after:
        query["StartAfter"] = start_after

    async def ask(client: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see open_client
        client.meta.events.register(contents.EVENT, contents.take, unique_id=contents.EVENT)
        answer: Mapping[str, Any] = await client.list_objects_v2(**query)
        return answer

    async with contextlib.aclosing(S3Clients(s3, limits, facts)) as clients:
        while True:
            answer = await clients.call(ask, request, limits.listing_deadline_s)
            yield answer
            token = answer.get("NextContinuationToken")
            if not answer.get("IsTruncated") or not token:
                return
            query["ContinuationToken"] = token


def _page(answer: Mapping[str, Any], root: str, order: _Order) -> list[ObjectRef]:
    """Return the wanted objects of an answer; takes about 30 microseconds per object."""
    refs = [
        ObjectRef(root, one.key, one.size_bytes, one.etag.removeprefix("W/").strip('"'))
        for one in contents.objects_of(answer)
    ]
    return order.keep(refs)


class _Order:
    """Checks that keys rise in UTF-8 byte order across pages; drops folder markers and keys up to ``start_after``."""

    def __init__(self, request: RequestContext, start_after: str) -> None:
        self._request = request
        self._start_after = start_after
        self._last = ""

    def keep(self, refs: list[ObjectRef]) -> list[ObjectRef]:
        """Return the wanted refs; the order of all refs is checked."""
        for ref in refs:
            # str compares by code point, which equals the order of UTF-8 bytes
            if ref.key <= self._last:
                raise Unsupported(
                    f"expected keys in byte order, got {ref.key!r} after {self._last!r}",
                    object=self._request.url,
                    hint="this store lists out of order (S3 directory buckets do): name the objects in a manifest",
                    stage="source",
                )
            self._last = ref.key
        return [ref for ref in refs if ref.key > self._start_after and (ref.size_bytes or ref.key[-1:] != "/")]
