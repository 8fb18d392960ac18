"""An fsspec file system, read-only: ``feedd://bucket/key`` is ``s3://bucket/key``, read through the node's daemon.

fsspec finds it by its protocol. A daemon fetches what is read, or takes it from its cache.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from feedd_client.file_calls import FileCalls

if TYPE_CHECKING:
    from feedd_client._wire import feedd_pb2 as pb

_BLOCK_BYTES: Final = 4 << 20


class FeedFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects of the buckets that the daemon may read, as files.

    Args:
        address: address of the daemon; None: as for ``FeedDataset``.
        reconnect_timeout_s: how long a daemon that does not answer is waited for.
        **storage_options: those of fsspec.
    """

    protocol: ClassVar[str] = "feedd"
    root_marker: ClassVar[str] = ""

    def __init__(
        self,
        address: str | None = None,
        reconnect_timeout_s: float = 60.0,
        **storage_options: Any,  # noqa: ANN401 - fsspec's
    ) -> None:
        super().__init__(**storage_options)
        self._calls = FileCalls(address, reconnect_timeout_s)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401, ARG002 - fsspec's
        """Return name, size, type and ETag of a file or folder.

        Raises:
            FileNotFoundError: there is neither an object nor a folder of this name.
        """
        path = self._strip_protocol(path)
        if "/" not in path:
            return _folder(path)
        try:
            return _file(path, self._calls.info(_url(path)))
        except FileNotFoundError:
            if not self._calls.list(f"{_url(path)}/", first=True):
                raise
            return _folder(path)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # noqa: ANN401, ARG002, FBT001, FBT002 - fsspec's
        """Return what is in a folder, or the file itself.

        Raises:
            FileNotFoundError: there is neither an object nor a folder of this name.
        """
        path = self._strip_protocol(path)
        if not path:
            raise OSError(errno.EINVAL, "expected feedd://bucket, because a daemon does not list buckets", "feedd://")
        entries = self._listed(path, recursive=False)
        if not entries:
            found = self.info(path)
            entries = [found] if found["type"] == "file" else []
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT001, FBT002 - fsspec's
        detail: bool = False,  # noqa: FBT001, FBT002 - fsspec's
        **kwargs: Any,  # noqa: ANN401 - fsspec's
    ) -> Any:  # noqa: ANN401 - fsspec's
        """Return all files below a folder, by one listing unless folders or a depth are asked for."""
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path)
        found = {entry["name"]: entry for entry in self._listed(path, recursive=True)}
        if not found and self.isfile(path):
            found = {path: self.info(path)}
        return found if detail else list(found)

    def exists(self, path: str, **kwargs: Any) -> bool:  # noqa: ANN401 - fsspec's
        """Whether there is an object or a folder; an error that does not tell is raised."""
        try:
            self.info(path, **kwargs)
        except FileNotFoundError:
            return False
        return True

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:  # noqa: ANN401, ARG002 - fsspec's
        """Return the bytes of a file, or of a range; a negative number counts from the end."""
        entry = self._file_info(path)
        first, last, _ = slice(start, end).indices(entry["size"])
        return self._range(entry, first, max(first, last))

    def ukey(self, path: str) -> str:
        """Return the ETag of an object."""
        etag: str = self._file_info(path)["ETag"]
        return etag

    def close(self) -> None:
        """Close the connection to the daemon. The next call opens another one."""
        self._calls.close()

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,  # noqa: ARG002, FBT001, FBT002 - fsspec's
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 - fsspec's
    ) -> FeedFile:
        """Return a file to read."""
        if mode != "rb":
            raise _read_only(path)
        return FeedFile(
            self, self._file_info(path), block_size=block_size or _BLOCK_BYTES, cache_options=cache_options, **kwargs
        )

    def _file_info(self, path: str) -> dict[str, Any]:
        found = self.info(path)
        if found["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), found["name"])
        return found

    def _range(self, entry: dict[str, Any], start: int, end: int) -> bytes:
        return self._calls.read(_url(entry["name"]), (entry["ETag"], entry["size"]), start, end)

    def _listed(self, path: str, *, recursive: bool) -> list[dict[str, Any]]:
        bucket = path.partition("/")[0]
        found = []
        for entry in self._calls.list(f"{_url(path)}/", recursive=recursive):
            name = f"{bucket}/{entry.key}"
            found.append(_file(name, entry) if entry.etag else _folder(name.rstrip("/")))
        return found

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:  # noqa: ANN401, ARG002, FBT001, FBT002 - fsspec's
        """Refuse."""
        raise _read_only(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - fsspec's
        """Refuse."""
        raise _read_only(path)

    def rmdir(self, path: str) -> None:
        """Refuse."""
        raise _read_only(path)

    def _rm(self, path: str) -> None:
        raise _read_only(path)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:  # noqa: ANN401, ARG002 - fsspec's
        """Refuse."""
        raise _read_only(path2)


class FeedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """One version of an object, to read.

    Args:
        fs: the file system.
        entry: the object, as ``info`` told it.
        **options: those of fsspec.
    """

    def __init__(self, fs: FeedFileSystem, entry: dict[str, Any], **options: Any) -> None:  # noqa: ANN401 - fsspec's
        self._entry = entry
        super().__init__(fs, entry["name"], mode="rb", size=entry["size"], **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs._range(self._entry, start, min(end, self.size))  # noqa: SLF001 - of this module
        return data


def _url(path: str) -> str:
    return f"s3://{path}"


def _file(path: str, entry: pb.FileEntry) -> dict[str, Any]:
    return {"name": path, "size": entry.size_bytes, "type": "file", "ETag": entry.etag}


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "expected a file to read, because feedd:// is read-only", path)
