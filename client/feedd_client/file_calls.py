"""Calls of the Files service: one daemon, errors as those of files, and patience while a daemon is replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from feedd_client._wire import feedd_pb2 as pb
from feedd_client.autostart import resolve_address
from feedd_client.errors import (
    AccessDenied,
    DatasetChanged,
    DatasetNotFound,
    FeedError,
    ProtocolError,
)
from feedd_client.transport import Endpoint, parse_address, probe, translate, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
_CALL_S: Final = 300.0
_LISTING_S: Final = 3600.0
_RATE_FLOOR_BYTES_S: Final = 1 << 18
_PAUSE_S: Final = 0.1
_CODES: Final[dict[type[FeedError], int]] = {
    DatasetNotFound: errno.ENOENT,
    AccessDenied: errno.EACCES,
    DatasetChanged: errno.ESTALE,
}


class FileCalls:
    """The calls of one process; a fork makes its own connection.

    Args:
        address: address of the daemon; None: as for ``FeedDataset``.
        reconnect_timeout_s: how long a daemon that does not answer is waited for.
    """

    def __init__(self, address: str | None, reconnect_timeout_s: float) -> None:
        self._explicit = address
        self._reconnect_timeout_s = reconnect_timeout_s
        self._lock = threading.Lock()
        self._endpoint: Endpoint | None = None

    def info(self, url: str) -> pb.FileEntry:
        """Return the current version of an object.

        Raises:
            FileNotFoundError, PermissionError: as named.
            FeedError: any other error of the daemon.
        """
        request = pb.FileInfoRequest(url=url)

        def work(endpoint: Endpoint) -> pb.FileEntry:
            entry: pb.FileEntry = endpoint.files.Info(request, timeout=_CALL_S, metadata=endpoint.headers)
            return entry

        return self._done(url, work)

    def list(self, url: str, *, recursive: bool = False, first: bool = False) -> list[pb.FileEntry]:
        """Return the names that begin with ``url``; ``first``: only some of them, to see whether there are any.

        Raises:
            FileNotFoundError, PermissionError: as named.
            FeedError: any other error of the daemon.
        """
        request = pb.ListFilesRequest(url=url, recursive=recursive)

        def work(endpoint: Endpoint) -> list[pb.FileEntry]:
            found: list[pb.FileEntry] = []
            call = endpoint.files.List(request, timeout=_LISTING_S, metadata=endpoint.headers)
            try:
                for part in call:
                    found += part.entries
                    if first:
                        break
            finally:
                call.cancel()
            return found

        return self._done(url, work)

    def read(self, url: str, version: tuple[str, int], start: int, end: int) -> bytes:
        """Return a range of a version of an object, as ``info`` told its ETag and size.

        A read that a restart of the daemon interrupts goes on where it was.

        Raises:
            FileNotFoundError, PermissionError: as named.
            OSError: with ESTALE: the object has changed.
            FeedError: any other error of the daemon.
        """
        etag, object_bytes = version
        data = bytearray()

        def work(endpoint: Endpoint) -> None:
            size_bytes = end - start - len(data)
            request = pb.ReadFileRequest(
                url=url, etag=etag, object_bytes=object_bytes, offset=start + len(data), size_bytes=size_bytes
            )
            timeout_s = _CALL_S + size_bytes / _RATE_FLOOR_BYTES_S
            for part in endpoint.files.Read(request, timeout=timeout_s, metadata=endpoint.headers):
                data.extend(part.data)

        if start < end:
            self._done(url, work)
        if len(data) != end - start:
            raise ProtocolError(f"expected {end - start} bytes of a range, got {len(data)}", object=url)
        return bytes(data)

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        with self._lock:
            endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _done(self, url: str, work: Callable[[Endpoint], _T]) -> _T:
        """Return the result of ``work``; while no daemon answers, try again."""
        deadline_s = time.monotonic() + self._reconnect_timeout_s
        with _as_file_errors(url):
            while True:
                try:
                    endpoint = self._connected()
                    try:
                        return work(endpoint)
                    except grpc.RpcError as error:
                        raise translate(error, endpoint.address) from None
                except FeedError as error:
                    if not error.reconnect or time.monotonic() + _PAUSE_S >= deadline_s:
                        raise
                    self.close()
                    time.sleep(_PAUSE_S)

    def _connected(self) -> Endpoint:
        """Return the connection of this process.

        Raises:
            DaemonUnreachable: nothing accepts connections.
        """
        with self._lock:
            endpoint = self._endpoint
            if endpoint is None or endpoint.pid != os.getpid():
                address = parse_address(resolve_address(self._explicit))
                reason = probe(address)
                if reason is not None:
                    raise unreachable(address, reason)
                endpoint = self._endpoint = Endpoint(address)
                endpoint.renew_ticket(_CALL_S)
            return endpoint


@contextlib.contextmanager
def _as_file_errors(url: str) -> Iterator[None]:
    """Raise the errors that readers of files know."""
    try:
        yield
    except FeedError as error:
        for kind, code in _CODES.items():
            if isinstance(error, kind):
                raise OSError(code, str(error), url) from None
        raise
