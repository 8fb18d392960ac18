"""The Files service: objects as files, for readers of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import grpc

from feedd.errors import BadRequest, FeeddError, StoreUnavailable, Unsupported
from feedd.flow.tasks import within
from feedd.serve.grpc_status import abort, as_feedd_error
from feedd.units import MIB
from feedd.values import ByteRange
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import bounded, bounded_texts, said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from feedd.owner import Owner
    from feedd.serve.callers import Callers
    from feedd.serve.session_registry import Sessions
    from feedd.values import ObjectRef

    AnyContext = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = "feedd.v1.Files"
_URL_BYTES_MAX: Final = 4096
_ETAG_BYTES_MAX: Final = 1024
_OBJECT_BYTES_MAX: Final = 1 << 62
_CHUNK_BYTES: Final = MIB
_READER_S: Final = 60.0


class ListedName(NamedTuple):
    """An object or a folder of a listing.

    Attributes:
        key: key of the object, or start of the folder's keys, with a slash at its end.
        ref: the object; None: a folder.
    """

    key: str
    ref: ObjectRef | None


class ObjectFiles(Protocol):
    """Objects as files, as the server uses them. Each call checks whether the owner may read the URL."""

    async def info(self, url: str, owner: Owner) -> ObjectRef:
        """Return the current version of an object.

        Raises:
            BadRequest, NotFound, PermissionDenied, StoreUnavailable: passed to the client unchanged.
        """

    async def list(
        self, url: str, owner: Owner, send: Callable[[Sequence[ListedName]], Awaitable[object]], *, recursive: bool
    ) -> None:
        """Send the names that begin with ``url``, page by page.

        Raises:
            BadRequest, PermissionDenied, StoreUnavailable: passed to the client unchanged.
        """

    async def read(
        self,
        version: tuple[str, str, int],
        owner: Owner,
        span: ByteRange,
        send: Callable[[memoryview], Awaitable[object]],
    ) -> None:
        """Send a range of a version of an object, piece by piece; a piece is valid until ``send`` returns.

        Args:
            version: URL, ETag and size of the version.
            owner: who reads.
            span: the range, within the object.
            send: receives the pieces in order.

        Raises:
            BadRequest, NotFound, ObjectChanged, PermissionDenied, StoreUnavailable: passed to the client unchanged.
        """


class FilesService:
    """Handlers of the Files service. An error ends only its call.

    Args:
        files: the objects; None: the daemon serves none.
        sessions: counts what owners have begun, and knows whether the daemon drains.
        callers: tells who sent a call.
    """

    def __init__(self, files: ObjectFiles | None, sessions: Sessions, callers: Callers) -> None:
        self._files = files
        self._sessions = sessions
        self._callers = callers

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to register at a server."""
        methods = {
            "Info": grpc.unary_unary_rpc_method_handler(
                self.info, pb.FileInfoRequest.FromString, pb.FileEntry.SerializeToString
            ),
            "List": grpc.unary_stream_rpc_method_handler(
                self.list, pb.ListFilesRequest.FromString, pb.ListFilesResponse.SerializeToString
            ),
            "Read": grpc.unary_stream_rpc_method_handler(
                self.read, pb.ReadFileRequest.FromString, pb.ReadFileResponse.SerializeToString
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def info(self, request: pb.FileInfoRequest, context: AnyContext) -> pb.FileEntry:
        """Return the current version of an object."""
        try:
            owner = self._admitted(request.url, context)
            with self._sessions.admissions.long_answer(owner):
                ref = await self._offered().info(request.url, owner)
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "looking at an object"))
        return _entry(ListedName(ref.key, ref))

    async def list(self, request: pb.ListFilesRequest, context: AnyContext) -> None:
        """Send the names that begin with a URL."""

        async def send(names: Sequence[ListedName]) -> None:
            await self._sent(context, pb.ListFilesResponse(entries=map(_entry, names)))

        try:
            owner = self._admitted(request.url, context)
            with self._sessions.admissions.long_answer(owner):
                await self._offered().list(request.url, owner, send, recursive=request.recursive)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "listing objects"))

    async def read(self, request: pb.ReadFileRequest, context: AnyContext) -> None:
        """Send a range of an object in chunks."""

        async def send(piece: memoryview) -> None:
            for at in range(0, len(piece), _CHUNK_BYTES):
                await self._sent(context, pb.ReadFileResponse(data=bytes(piece[at : at + _CHUNK_BYTES])))

        try:
            owner = self._admitted(request.url, context)
            version, span = _range(request)
            with self._sessions.admissions.long_answer(owner):
                await self._offered().read(version, owner, span, send)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 -- the border: every error becomes a status
            await abort(context, as_feedd_error(error, "reading an object"))

    def _admitted(self, url: str, context: AnyContext) -> Owner:
        """Return who sent a call, if it may begin."""
        owner = self._callers.of(context).owner
        self._sessions.check_draining()
        bounded_texts("url", [url], 1, _URL_BYTES_MAX)
        return owner

    def _offered(self) -> ObjectFiles:
        if self._files is None:
            raise Unsupported("this daemon serves no files", stage="serve")
        return self._files

    async def _sent(self, context: AnyContext, message: object) -> None:
        """Send a message. A client that takes none for a while loses its call, because the bytes take memory."""
        async with within(_READER_S, _unread):
            await context.write(message)


def _range(request: pb.ReadFileRequest) -> tuple[tuple[str, str, int], ByteRange]:
    """Return the version and the range that a request names.

    Raises:
        BadRequest: a number is out of bounds.
    """
    bounded_texts("etag", [request.etag], 1, _ETAG_BYTES_MAX)
    if not request.etag:
        raise BadRequest("expected the etag of the version to read, got none", object=request.url, stage="serve")
    size_bytes = bounded("object_bytes", request.object_bytes, 0, _OBJECT_BYTES_MAX)
    offset = bounded("offset", request.offset, 0, size_bytes)
    end = offset + bounded("size_bytes", request.size_bytes, 0, size_bytes - offset)
    return (request.url, request.etag, size_bytes), ByteRange(offset, end)


def _entry(name: ListedName) -> pb.FileEntry:
    if name.ref is None:
        return pb.FileEntry(key=said(name.key))
    return pb.FileEntry(key=said(name.key), size_bytes=name.ref.size_bytes, etag=name.ref.etag)


def _unread() -> FeeddError:
    return StoreUnavailable(f"expected the client to read an answer within {_READER_S:.0f} s", stage="serve")
