"""Google Cloud Storage and Azure Blob Storage by their own APIs, through obstore, an optional library.

obstore finds credentials by its own chain: environment variables, files of the clouds' tools, and metadata services.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import importlib
import itertools
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

from feedd.errors import (
    BadConfig,
    BadRequest,
    BadResponse,
    FeeddError,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    StoreUnavailable,
    Throttled,
    Unsupported,
)
from feedd.fetch.hints import CHANGED_HINT, MISSING_HINT
from feedd.flow.pools import CPU
from feedd.units import MIB
from feedd.values import ObjectRef, ReadProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from feedd.fetch.fetch_options import SourceOptions
    from feedd.range_sink import RangeSink
    from feedd.values import ByteRange, ObjectChecksum

_PAGE_COUNT: Final = 1000
_CHUNK_BYTES: Final = MIB
_STATUS: Final = re.compile(r"non-2xx status code: ([0-9]{3})")
_END_HINT: Final = "a proxy or a login page may have answered in place of a page, or the bucket changes: open it again"
_KEYS: Final = "rename keys with //, /./ or /../ in them, or read the bucket through its S3 face (s3://), if it has one"
_LOGIN: Final = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS where the daemon runs, or give its machine a service account that may "
    "read the bucket (roles/storage.objectViewer); GOOGLE_SKIP_SIGNATURE=true reads public buckets",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and a key, token or identity (AZURE_STORAGE_*, AZURE_CLIENT_ID) where the "
    "daemon runs; the identity needs the role Storage Blob Data Reader; AZURE_SKIP_SIGNATURE=true reads public data",
}
_ENDPOINTS: Final = ("GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL")


class ObstoreStore:
    """One bucket or container. Sends each request once: retries are a wrapper's.

    Raises:
        ModuleNotFoundError: the library is not installed.
    """

    def __init__(self, root: str, limits: SourceOptions) -> None:
        self._root = root
        self._limits = limits
        self._login = _LOGIN["gs" if root.startswith("gs://") else "az"]
        self._obstore = _library()
        self._errors = (self._obstore.exceptions.BaseError, FileNotFoundError, ValueError)
        self._store: Any = None  # opened on first use, because that reads files

    def __repr__(self) -> str:
        return f"ObstoreStore({self._root})"

    @property
    def root(self) -> str:
        """The root URL."""
        return self._root

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[list[ObjectRef], None]:
        """Yield pages in byte order; see ``ObjectStore.list``.

        The library lists whole folders. Of a prefix that ends within a name, the folder's own level is listed first,
        and then the inner folders that match.
        """
        url = f"{self._root}/{prefix}"
        folder = prefix[: prefix.rfind("/") + 1]
        folders = [folder]
        found: list[Mapping[str, Any]] = []
        if prefix != folder:
            level = await self._call(self._level(folder), url)
            found = [one for one in level["objects"] if str(one["path"]).startswith(prefix)]
            folders = [f"{name}/" for name in level["common_prefixes"] if f"{name}/".startswith(prefix)]
            if prefix > start_after and (exact := [one for one in found if one["path"] == prefix and one["size"]]):
                yield await CPU.run(_refs, self._root, exact, url)  # whoever names one object reads no further
                found = [one for one in found if one["path"] != prefix]
            ends = [*(str(one["path"]) for one in level["objects"]), *(f"{name}0" for name in level["common_prefixes"])]
            await self._confirm_end(folder, max(ends, default=""), set(), "", url)  # 0 follows the slash
        for one in folders:
            found += await self._all_below(one, url)
        refs = await CPU.run(_sorted_refs, self._root, found, url, start_after)
        for at in range(0, len(refs), _PAGE_COUNT):
            yield refs[at : at + _PAGE_COUNT]

    async def head(self, key: str) -> ObjectRef:
        """Return the current version; see ``ObjectStore.head``."""
        url = f"{self._root}/{key}"
        meta = await self._call(self._head(key), url)
        return _ref(self._root, meta, url)

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:  # noqa: ARG002 - the seam's
        """Return None, because the library does not pass checksums on."""
        return None

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Receive one range into ``sink``; see ``ObjectStore.read_into``."""
        assert sink.size_bytes == span.size_bytes, "the sink must be exactly as long as the range"
        if span.size_bytes:
            noted = progress or ReadProgress()
            deadline_s = self._limits.read_deadline_s(span.size_bytes)
            await self._call(self._receive(ref, span, sink, noted), ref.url, ref.etag, deadline_s)

    async def close(self) -> None:
        """Forget the library's store, which closes its connections; idempotent."""
        self._store = None

    async def _receive(self, ref: ObjectRef, span: ByteRange, sink: RangeSink, noted: ReadProgress) -> None:
        options: Any = {"range": (span.start, span.end), "if_match": f'"{ref.etag}"'}
        answer = await self._obstore.get_async(await self._opened(), ref.key, options=options)
        now = _ref(self._root, answer.meta, ref.url)
        if (now.etag, now.size_bytes) != (ref.etag, ref.size_bytes):
            said = f"etag {ref.etag} of {ref.size_bytes} bytes, got {now.etag} of {now.size_bytes} bytes"
            raise ObjectChanged(f"expected {said}", object=ref.url, hint=CHANGED_HINT, stage="source")
        if tuple(answer.range) != (span.start, span.end):
            message = f"expected bytes {span.start} to {span.end}, got {answer.range}"
            raise BadResponse(message, object=ref.url, stage="source")
        noted.answered_by = "obstore"
        at = 0
        async for piece in answer.stream(min_chunk_size=_CHUNK_BYTES):
            if noted.first_byte_s is None:
                noted.first_byte_s = time.monotonic()
            if at + len(piece) > span.size_bytes:
                raise BadResponse(f"expected {span.size_bytes} bytes, got more", object=ref.url, stage="source")
            await sink.write(at, memoryview(piece))
            at = noted.filled_bytes = at + len(piece)
        if at != span.size_bytes:
            raise StoreUnavailable(f"expected {span.size_bytes} bytes, got {at}", object=ref.url, stage="source")

    async def _head(self, key: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._obstore.head_async(await self._opened(), key)
        return found

    async def _level(self, folder: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._obstore.list_with_delimiter_async(
            await self._opened(), folder.rstrip("/")
        )
        return found

    async def _pages(self, folder: str, after: str = "") -> Any:  # noqa: ANN401 - see _opened
        found = self._obstore.list(
            await self._opened(), folder.rstrip("/"), offset=after or None, chunk_size=_PAGE_COUNT
        )
        return aiter(found)

    async def _all_below(self, folder: str, url: str) -> Sequence[Mapping[str, Any]]:
        """Return all objects in a folder; each page has a deadline of its own."""
        pages = await self._call(self._pages(folder), url)
        found: list[Mapping[str, Any]] = []
        while (page := await self._call(anext(pages, None), url)) is not None:
            if any(not str(one["path"]).startswith(folder) for one in page):
                raise BadResponse(f"expected keys that begin with {folder!r}, got others", object=url, stage="source")
            found += page
        names = {str(one["path"]) for one in found}
        after, last = sorted(["", "", *heapq.nlargest(2, names)])[-2:]
        await self._confirm_end(folder, after, names, last, url)
        return found

    async def _confirm_end(self, folder: str, after: str, names: set[str], last: str, url: str) -> None:
        """Ask Google once more for the end of a listing: the library takes a web page for a last page without objects.

        Args:
            folder: what was listed.
            after: ask for the keys after this one.
            names: keys that may come.
            last: a key that must come; empty: none.
            url: for errors.

        Raises:
            BadResponse: the listing was cut off, or has changed since.
        """
        if not self._root.startswith("gs://"):
            return
        page = await self._call(anext(await self._call(self._pages(folder, after), url), None), url)
        rest = {str(one["path"]) for one in page or ()}
        if (last and last not in rest) or not rest <= names:
            message = f"expected the end of the listing after {after or folder!r}, got other keys"
            raise BadResponse(message, object=url, hint=_END_HINT, stage="source")

    async def _opened(self) -> Any:  # noqa: ANN401 - the library is optional, so its types are not known here
        if self._store is None:
            options: Any = {"connect_timeout": f"{self._limits.connect_timeout_s:.0f}s", "timeout": "3600s"}
            if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
                options["allow_http"] = True  # the operator named an endpoint without encryption, such as an emulator
            retries = {"max_retries": 0}
            try:
                self._store = await CPU.run(
                    self._obstore.store.from_url, self._root, client_options=options, retry_config=retries
                )
            except self._errors as error:
                message = f"the store cannot be opened: {_line(error)}"
                raise BadConfig(message, object=self._root, hint=self._login, stage="source") from error
        return self._store

    async def _call(self, call: Any, url: str, etag: str = "", deadline_s: float = 0.0) -> Any:  # noqa: ANN401 - see _opened
        """Await a call within its deadline, and translate the library's errors."""
        try:
            async with asyncio.timeout(deadline_s or self._limits.listing_deadline_s):
                return await call
        except TimeoutError as error:
            raise StoreUnavailable("no answer in time", object=url, stage="source") from error
        except self._errors as error:
            raise self._translated(error, url, etag) from error

    def _translated(self, error: BaseException, url: str, etag: str) -> FeeddError:  # noqa: PLR0911 - a table
        kinds = self._obstore.exceptions
        where = {"object": url, "stage": "source"}
        text = _line(error)
        match = _STATUS.search(text)
        status = int(match[1]) if match else 0
        said = f"status {status}" if status else text
        if isinstance(error, (kinds.NotFoundError, FileNotFoundError)):
            return NotFound("the object or bucket does not exist", hint=MISSING_HINT, **where)
        if isinstance(error, (kinds.PermissionDeniedError, kinds.UnauthenticatedError)) or status in {401, 403}:
            return PermissionDenied(f"access denied: {said}", hint=self._login, **where)
        if isinstance(error, kinds.PreconditionError) or status == 416:
            return ObjectChanged(f"expected etag {etag}, got another ({said})", hint=CHANGED_HINT, **where)
        if isinstance(error, (kinds.InvalidPathError, ValueError)):
            return Unsupported(f"expected keys that obstore can name, got {text}", hint=_KEYS, **where)
        if status in {429, 503}:
            return Throttled(f"the store asked to slow down: {said}", object=url, stage="source")
        if 400 <= status < 500 and status != 408:
            return BadRequest(f"the store refused the request: {said}", **where)
        hint = self._login if "token" in text else "check endpoint, proxy and network"
        return StoreUnavailable(f"the store failed: {said}", hint=hint, **where)


@functools.cache
def _library() -> Any:  # noqa: ANN401 - the library is optional, so its types are not known here
    for name in ("obstore.exceptions", "obstore.store"):
        importlib.import_module(name)
    return importlib.import_module("obstore")


def _line(error: BaseException) -> str:
    """Return the first line of an error of the library, which shows its source, too."""
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:300]


def _ref(root: str, meta: Mapping[str, Any], url: str) -> ObjectRef:
    etag = str(meta["e_tag"] or "").removeprefix("W/").strip('"')
    if not etag:
        raise BadResponse("expected an etag, got none", object=url, stage="source")
    return ObjectRef(root, str(meta["path"]), int(meta["size"]), etag)


def _refs(root: str, found: Sequence[Mapping[str, Any]], url: str) -> list[ObjectRef]:
    return [_ref(root, meta, url) for meta in found]


def _sorted_refs(root: str, found: Sequence[Mapping[str, Any]], url: str, start_after: str) -> list[ObjectRef]:
    """Return the objects in byte order, without folder markers, which the library gives without their slash."""
    folders: set[str] = set()
    for meta in found:
        parts = str(meta["path"]).split("/")
        if len(parts) > 1:
            folders.add("/".join(parts[:-1]))
    refs = _refs(root, [meta for meta in found if meta["size"] or meta["path"] not in folders], url)
    refs = sorted((ref for ref in refs if ref.key > start_after), key=lambda ref: ref.key)
    if twice := next((one.key for one, other in itertools.pairwise(refs) if one.key == other.key), None):
        raise BadResponse(f"expected each key once, got {twice!r} twice", object=url, stage="source")
    return refs
