"""A local folder as the destination of a pack."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import msgspec

from feedd.dataset.pack_names import MANIFEST_NAME
from feedd.fetch.local_store import file_etag, path_error
from feedd.flow.pools import LOCAL_FILES
from feedd.pack.destination import ShardRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from feedd.pack.packed_sample import Piece

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DRAFTS: Final = ".feedd_pack"
_VANISHED: Final = (FileNotFoundError, FileExistsError)
"""What a draft can meet when another process has finished the pack; the latter comes from ``mkdir``."""

_TRIES: Final = 8
_SMALL_BYTES: Final = 4 << 10
_COLLECTED_BYTES: Final = 256 << 10
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class _Shard(msgspec.Struct):
    name: str
    samples: int
    bytes: int
    sha256: str


class _Source(msgspec.Struct):
    plan_sha256: str


class _Manifest(msgspec.Struct):
    source: _Source
    shards: list[_Shard]


class LocalFolder:
    """A local folder. Drafts and records of shards lie in a hidden folder below it, until the pack is complete.

    Args:
        path: absolute path of the folder, which need not exist.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        self._drafts = self._folder / _DRAFTS

    @property
    def url(self) -> str:
        """See ``Destination.url``."""
        return f"{self._folder}/"

    async def read(self, name: str) -> bytes | None:
        """See ``Destination.read``."""
        return await self._in_thread(self._read, name)

    async def create(self, name: str, data: bytes) -> bool:
        """See ``Destination.create``."""
        return await self._in_thread(self._create, name, data)

    async def replace(self, name: str, data: bytes) -> None:
        """See ``Destination.replace``."""
        await self._in_thread(self._write, name, data)

    async def names(self) -> set[str]:
        """See ``Destination.names``."""
        return await self._in_thread(self._names)

    async def find(self, name: str, plan: str) -> ShardRecord | None:
        """See ``Destination.find``.

        If a shard is not the file that was written, or the pack is complete, its bytes are read and their digest
        compared.
        """
        return await self._in_thread(self._find, name, plan)

    async def write_shard(self, name: str, pieces: Iterable[Piece], plan: str, samples: int) -> ShardRecord:
        """See ``Destination.write_shard``."""
        return await self._in_thread(self._write_shard, name, pieces, plan, samples)

    async def finish(self) -> None:
        """See ``Destination.finish``."""
        await LOCAL_FILES.run(shutil.rmtree, self._drafts, ignore_errors=True)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await LOCAL_FILES.run(work, *args, **kwargs)
        except OSError as error:
            raise path_error(error, error.filename or str(self._folder), "read or written") from error

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _names(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self._folder) if entry.is_file()}
        except FileNotFoundError:
            return set()

    def _create(self, name: str, data: bytes) -> bool:
        return _while_drafts_vanish(lambda: self._link(name, data))

    def _link(self, name: str, data: bytes) -> bool:
        with self._draft([data]) as (draft, _, _):
            try:
                os.link(draft, self._folder / name)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if (self._folder / name).exists():  # this file system cannot exclude a second writer
                    return False
                draft.replace(self._folder / name)
        return True

    def _write(self, name: str, data: bytes) -> None:
        _while_drafts_vanish(lambda: self._rename(name, data))

    def _rename(self, name: str, data: bytes) -> None:
        with self._draft([data]) as (draft, _, _):
            draft.replace(self._folder / name)

    def _write_shard(self, name: str, pieces: Iterable[Piece], plan: str, samples: int) -> ShardRecord:
        try:
            with self._draft(pieces) as (draft, size_bytes, sha256):
                record = ShardRecord(plan, sha256, size_bytes, samples, file_etag(draft.stat()))
                draft.replace(self._folder / name)
            self._write(f"{_DRAFTS}/{name}.json", msgspec.json.encode(record))
        except _VANISHED:
            self.__dict__.pop("_listed", None)
            found = self._find(name, plan)
            if found is None:
                raise
            return found
        return record

    def _find(self, name: str, plan: str) -> ShardRecord | None:
        data = self._read(f"{_DRAFTS}/{name}.json")
        record = self._listed.get(name) if data is None else _record(data)
        path = self._folder / name
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        if record is None or record.plan != plan or status.st_size != record.size_bytes:
            return None
        etag = file_etag(status)
        if etag != record.etag and _digest(path) != record.sha256:
            return None
        return replace(record, etag=etag)

    @cached_property
    def _listed(self) -> Mapping[str, ShardRecord]:
        """The shards of a complete pack, by name."""
        data = self._read(MANIFEST_NAME)
        try:
            found = None if data is None else msgspec.json.decode(data, type=_Manifest)
        except msgspec.MsgspecError:
            found = None
        if found is None:
            return {}
        plan = found.source.plan_sha256
        return {one.name: ShardRecord(plan, one.sha256, one.bytes, one.samples) for one in found.shards}

    @contextlib.contextmanager
    def _draft(self, pieces: Iterable[Piece]) -> Iterator[tuple[Path, int, str]]:
        """Write a file with a name of its own, which is gone after the body; yield its path, size and SHA-256."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        draft = self._drafts / f"{secrets.token_hex(8)}.new"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                size_bytes, sha256 = _write_all(fd, pieces)
            finally:
                os.close(fd)
            yield draft, size_bytes, sha256
        finally:
            draft.unlink(missing_ok=True)


def _while_drafts_vanish(write: Callable[[], _T]) -> _T:
    """Return what ``write`` returns; repeat it if another process removes all drafts meanwhile.

    Every process of a pack does that once, so there is an end.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(*_VANISHED):
            return write()
    return write()


def _record(data: bytes) -> ShardRecord | None:
    try:
        return msgspec.json.decode(data, type=ShardRecord)
    except msgspec.MsgspecError:
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_all(fd: int, pieces: Iterable[Piece]) -> tuple[int, str]:
    """Write pieces to a file as they come, while they are in the CPU cache; return their size and SHA-256.

    Small pieces are collected, because each write and each update of the digest has its price.
    """
    digest, small, size_bytes = hashlib.sha256(), bytearray(), 0
    for piece in pieces:
        if len(piece) < _SMALL_BYTES:
            small += piece
            if len(small) < _COLLECTED_BYTES:
                continue
        large = piece if len(piece) >= _SMALL_BYTES else b""
        digest.update(small)
        digest.update(large)
        size_bytes += len(small) + len(large)
        _write_both(fd, bytes(small), large)
        small.clear()
    digest.update(small)
    _write_both(fd, bytes(small), b"")
    return size_bytes + len(small), digest.hexdigest()


def _write_both(fd: int, first: bytes, second: Piece) -> None:
    views = [memoryview(one) for one in (first, second) if len(one)]
    while views:
        written = os.writev(fd, views)
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]
