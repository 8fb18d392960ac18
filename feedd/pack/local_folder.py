"""A local folder as the destination of a pack."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import msgspec

from feedd.dataset.pack_names import MANIFEST_NAME
from feedd.fetch.local_store import file_etag, path_error
from feedd.flow.pools import LOCAL_FILES
from feedd.pack.destination import ShardRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from feedd.pack.packed_sample import Piece

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DRAFTS: Final = ".feedd_pack"
_PIECES_AT_ONCE: Final = 512  # the system takes 1,024 at most
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
        await self._in_thread(self._write, name, [data])

    async def names(self) -> set[str]:
        """See ``Destination.names``."""
        return await self._in_thread(self._names)

    async def find(self, name: str, plan: str) -> ShardRecord | None:
        """See ``Destination.find``.

        If a shard is not the file that was written, or the pack is complete, its bytes are read and their digest
        compared.
        """
        return await self._in_thread(self._find, name, plan)

    async def write_shard(self, name: str, pieces: Sequence[Piece], record: ShardRecord) -> ShardRecord:
        """See ``Destination.write_shard``."""
        return await self._in_thread(self._write_shard, name, pieces, record)

    async def finish(self) -> None:
        """See ``Destination.finish``."""
        await LOCAL_FILES.run(shutil.rmtree, self._drafts, ignore_errors=True)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return await LOCAL_FILES.run(work, *args, **kwargs)
        except OSError as error:
            raise path_error(error, error.filename or str(self._folder)) from error

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
        with self._draft([data]) as draft:
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

    def _write(self, name: str, pieces: Sequence[Piece]) -> str:
        with self._draft(pieces) as draft:
            etag = file_etag(draft.stat())
            draft.replace(self._folder / name)
        return etag

    def _write_shard(self, name: str, pieces: Sequence[Piece], record: ShardRecord) -> ShardRecord:
        written = replace(record, etag=self._write(name, pieces))
        self._write(f"{_DRAFTS}/{name}.json", [msgspec.json.encode(asdict(written))])
        return written

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
    def _draft(self, pieces: Sequence[Piece]) -> Iterator[Path]:
        """Write a file with a name of its own, which is gone after the body."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        draft = self._drafts / f"{secrets.token_hex(8)}.new"
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                _write_all(fd, pieces)
            finally:
                os.close(fd)
            yield draft
        finally:
            draft.unlink(missing_ok=True)


def _record(data: bytes) -> ShardRecord | None:
    try:
        return msgspec.json.decode(data, type=ShardRecord)
    except msgspec.MsgspecError:
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_all(fd: int, pieces: Sequence[Piece]) -> None:
    left = iter(pieces)
    while group := [memoryview(piece) for piece in islice(left, _PIECES_AT_ONCE) if len(piece)]:
        while group:
            written = os.writev(fd, group)
            while group and written >= len(group[0]):
                written -= len(group.pop(0))
            if group:
                group[0] = group[0][written:]
