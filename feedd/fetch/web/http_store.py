"""Objects on a web server: ``https://host/path``. A server lists nothing, so each object is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import NotFound, Unsupported
from feedd.fetch.web.web_ranges import Asking
from feedd.fetch.web.web_store import WebStore
from feedd.fetch.web.web_target import object_target
from feedd.values import ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from feedd.fetch.s3.connection import Answer
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum

_WEAK: Final = "weak "
_DATED: Final = "date "
_NAME_EACH: Final = "name each object: shard-{000000..000099}.tar, a list of URLs, or a manifest (manifest+https://...)"


class HttpStore(WebStore):
    """One web server, by scheme, host and port. Sends each request once.

    The version of an object is its strong ETag, else its weak ETag, else its date of change.
    """

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield the object whose key is ``prefix``, if there is one; see ``ObjectStore.list``.

        Raises:
            Unsupported: the prefix is a folder.
        """
        if prefix[-1:] in {"", "/"}:
            message = "expected the URL of an object, got a folder, which a web server does not list"
            raise Unsupported(message, object=f"{self._root}/{prefix}", hint=_NAME_EACH, stage="source")
        try:
            found = await self.head(prefix)
        except NotFound:
            return
        if found.key > start_after:
            yield [found]

    async def head(self, key: str) -> ObjectRef:
        """Return the current version; see ``ObjectStore.head``."""
        url = f"{self._root}/{key}"
        asking = Asking(object_target(self._root, key), {}, lambda answer: _version_of(answer, url))
        size_bytes, version = await self._ranges.facts(asking, url)
        return ObjectRef(self._root, key, size_bytes, version)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:  # noqa: ARG002 - the seam's
        """Return None, because web servers state no checksum."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if not span.size_bytes:
            return
        headers = {} if ref.etag.startswith((_WEAK, _DATED)) else {"If-Match": f'"{ref.etag}"'}
        start = object_target(self._root, ref.key)
        asking = Asking(start, headers, lambda answer: _version_of(answer, ref.url))
        await self._ranges.read(asking, ref, span, sink, progress or ReadProgress())


def _version_of(answer: Answer, url: str) -> str:
    """Return the version in the head of an answer.

    Raises:
        Unsupported: the server states none.
    """
    etag = answer.headers.get("etag", "")
    plain = etag.removeprefix("W/").strip('"')
    if plain and plain.isascii() and plain.isprintable():
        return f"{_WEAK}{plain}" if etag.startswith("W/") else plain
    changed = answer.headers.get("last-modified", "")
    if changed:
        return f"{_DATED}{changed}"
    message = "expected an ETag or Last-Modified header, got neither: a change of the object could not be noticed"
    hint = "let the server send ETags, or copy the object to a bucket or a local folder"
    raise Unsupported(message, object=url, hint=hint, stage="source")
