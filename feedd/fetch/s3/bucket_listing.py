"""Lists a bucket off the event loop, which millions of keys would block: one thread requests pages, others parse.

S3 Express One Zone lists keys in any order. Its objects are sorted when all are listed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from feedd.errors import BadResponse, Unsupported
from feedd.fetch.s3 import listing_contents as contents
from feedd.fetch.s3.range_listing import IN_FLIGHT_MAX, RangeListing
from feedd.fetch.s3.sdk_client import S3Clients
from feedd.fetch.threaded import iterate_in_thread
from feedd.flow.pools import CPU
from feedd.values import ArchivedRef, ObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.fetch.s3.listing_contents import Page
    from feedd.fetch.s3.region import BucketFacts
    from feedd.fetch.s3.sdk_errors import RequestContext

_PAGES_AHEAD_COUNT: Final = 8
_PAGE_COUNT: Final = 1000
_DIRECTORY_BUCKET: Final = "--x-s3"


async def list_pages(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[list[ObjectRef], None]:
    """Yield non-empty pages of the keys under ``request.url`` that come after ``start_after``.

    Folder markers (zero bytes, key ending in ``/``) are left out. The thread has ended when the generator is closed.

    Raises:
        Unsupported: the store lists out of order, without etags, or cannot continue a listing.
        BadResponse: a page is not whole, or an object has no key or size.
        NotFound, PermissionDenied, StoreUnavailable: as the store answered.
    """
    sorts = not is_directory_bucket(bucket)
    root, order = f"s3://{bucket}", _Order(request, start_after)
    unsorted: list[ObjectRef] = []

    def make() -> AsyncGenerator[tuple[Page, str | None], None]:
        return _answers(bucket, request, limits, start_after if sorts else "", facts)

    answers = iterate_in_thread(make, name=f"feedd-list-{bucket}", ahead_count=_PAGES_AHEAD_COUNT)
    try:
        async with contextlib.aclosing(answers):
            async for page, end in answers:  # further pages are being requested meanwhile
                refs = await CPU.run(_refs, page, end, root)
                if not sorts:
                    unsorted += refs
                elif wanted := order.keep(refs):
                    yield wanted
    except (BadResponse, Unsupported) as error:
        error.object = request.url  # what judges a page does not know the URL
        raise
    for wanted in await CPU.run(_sorted_pages, unsorted, request.url.removeprefix(f"{root}/"), order):
        yield wanted


def is_directory_bucket(bucket: str) -> bool:
    """Whether a bucket is one of S3 Express One Zone: it lists keys in any order, and only below folders."""
    return bucket.endswith(_DIRECTORY_BUCKET)


async def _answers(
    bucket: str, request: RequestContext, limits: SourceOptions, start_after: str, facts: BucketFacts
) -> AsyncGenerator[tuple[Page, str | None], None]:
    """Request pages, with a client of the thread's own loop; runs in the thread."""
    s3 = limits.for_bucket(bucket)
    prefix = request.url.removeprefix(f"s3://{bucket}/")
    fixed = {"Bucket": bucket, "Prefix": prefix}
    if s3.requester_pays:
        fixed["RequestPayer"] = "requester"
    sorts = not is_directory_bucket(bucket)
    if not sorts:
        fixed["Prefix"] = prefix[: prefix.rfind("/") + 1]
    async with contextlib.aclosing(S3Clients(s3, limits, facts)) as clients:

        async def ask(query: Mapping[str, str]) -> Page:
            async def send(client: Any) -> Page:  # noqa: ANN401 - see open_client
                client.meta.events.register(contents.EVENT, contents.take, unique_id=contents.EVENT)
                return contents.page_of(await client.list_objects_v2(**fixed, **query), fixed["Prefix"])

            page = await clients.call(send, request, limits.listing_deadline_s)
            if page.truncated and not page.token and not sorts:
                raise BadResponse("expected a continuation token in a truncated page, got none", stage="source")
            return page

        listing = RangeListing(ask, prefix, start_after, IN_FLIGHT_MAX if sorts else 1, sorts=sorts)
        async with contextlib.aclosing(listing.pages()) as pages:
            async for page in pages:
                yield page


def _refs(page: Page, end: str | None, root: str) -> list[ObjectRef]:
    """Return the objects of a page up to a key; takes about 10 microseconds per object."""
    return [
        (ArchivedRef if one.archived else ObjectRef)(
            root, one.key, one.size_bytes, one.etag.removeprefix("W/").strip('"')
        )
        for one in contents.objects_of(page)
        if end is None or one.key <= end
    ]


def _sorted_pages(refs: list[ObjectRef], prefix: str, order: _Order) -> list[list[ObjectRef]]:
    """Return the objects below a prefix in byte order."""
    wanted = order.keep(sorted((ref for ref in refs if ref.key.startswith(prefix)), key=lambda ref: ref.key))
    return [wanted[at : at + _PAGE_COUNT] for at in range(0, len(wanted), _PAGE_COUNT)]


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
                    hint="this store lists out of order: name the objects in a manifest",
                    stage="source",
                )
            self._last = ref.key
        return [ref for ref in refs if ref.key > self._start_after and (ref.size_bytes or ref.key[-1:] != "/")]
