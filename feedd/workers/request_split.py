"""Builds packets from calls: the rows of a chunk, with only the files that these rows need."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from feedd.errors import CacheUnavailable
from feedd.flow.sink_file import OpenFile
from feedd.workers.messages import DecodeRequest, FieldMessage, FileMessage, MeasureRequest, Packet, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.values import ShardFile
    from feedd.workers.work import DecodeTask, FieldWork

_FEW_FILES: Final = 8  # up to this many files are all sent: choosing among them costs as much as the request


class SentFiles(NamedTuple):
    """What a worker needs to map files.

    Attributes:
        messages: one for each file.
        fds: the descriptors to send along.
        opened: files among them that are to be closed after that.
    """

    messages: tuple[FileMessage, ...]
    fds: tuple[int, ...]
    opened: tuple[OpenFile, ...] = ()


def file_messages(files: Sequence[ShardFile]) -> SentFiles:
    """Return what a worker needs to map files. Those that the cache could not keep open are opened.

    The cache has just opened and closed these files in a thread, so no open waits for the disk here.

    Raises:
        CacheUnavailable: a file cannot be opened.
    """
    fds: list[int] = []
    opened: list[OpenFile] = []
    found: list[FileMessage] = []
    for file in files:
        fd = file.fd
        if file.is_opened_late:
            opened.append(_opened(file))
            fd = opened[-1].fd
        given = -1
        if fd >= 0:
            given = len(fds)
            fds.append(fd)
        found.append(FileMessage(file.path, file.data_at, file.ref.size_bytes, file.ref.url, given))
    return SentFiles(tuple(found), tuple(fds), tuple(opened))


def _opened(file: ShardFile) -> OpenFile:
    try:
        # A FIFO that another process put there must not hold up the loop.
        opened = OpenFile(os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
        status = os.fstat(opened.fd)
    except OSError as error:
        raise CacheUnavailable(f"expected a file, got {error}", object=file.ref.url, stage="decode") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.data_at + file.ref.size_bytes:
        got = f"{stat.filemode(status.st_mode)} of {status.st_size} bytes at {file.path}"
        raise CacheUnavailable(f"expected a regular file of its length, got {got}", object=file.ref.url, stage="decode")
    return opened


def decode_packet(task: DecodeTask, rows: range, request_id: int) -> Packet:
    """Return the request to decode ``rows`` of ``task``."""
    files, renumber = _files(task.files, task.fields, rows)
    fields = tuple(_field(work, rows, renumber) for work in task.fields)
    seeds = task.seeds[rows.start : rows.stop].astype("<u8", copy=False).tobytes()
    request = DecodeRequest(request_id, files.messages, task.arena_id, task.slot_at, fields, seeds)
    return Packet(encode(request), files.fds, files.opened)


def measure_packet(
    files: Sequence[ShardFile],
    work: FieldWork,
    rows: range,
    request_id: int,
    *,
    values: bool = False,
    keep: bool = False,
) -> Packet:
    """Return the request to measure ``rows`` of one field, to read them as numbers, or to keep their values."""
    needed, renumber = _files(files, (work,), rows)
    request = MeasureRequest(request_id, needed.messages, _field(work, rows, renumber), values, keep)
    return Packet(encode(request), needed.fds, needed.opened)


def _files(
    files: Sequence[ShardFile], fields: Sequence[FieldWork], rows: range
) -> tuple[SentFiles, NDArray[np.int32] | None]:
    """Return the files that ``rows`` need, and their new numbers.

    The numbers are int32[files], by old number; None: unchanged.
    """
    if len(files) <= _FEW_FILES and len(rows) > 1:  # the request for a single row is kept as small as possible
        return file_messages(files), None
    needed = np.zeros(len(files), np.bool_)
    for work in fields:
        needed[work.file_no[rows.start : rows.stop]] = True
    used = np.flatnonzero(needed)
    renumber = np.zeros(len(files), np.int32)
    renumber[used] = np.arange(len(used))
    return file_messages([files[old] for old in used.tolist()]), renumber


def _field(work: FieldWork, rows: range, renumber: NDArray[np.int32] | None) -> FieldMessage:
    part = slice(rows.start, rows.stop)
    file_no = work.file_no[part] if renumber is None else renumber[work.file_no[part]]
    return FieldMessage(
        name=work.recipe.name,
        codec=work.recipe.codec,
        params=work.recipe.params,
        encoding=work.recipe.encoding,
        file_no=file_no.astype("<i4", copy=False).tobytes(),
        start=work.start[part].astype("<i8", copy=False).tobytes(),
        size=work.size[part].astype("<i8", copy=False).tobytes(),
        out_at=work.out_at[part].astype("<i8", copy=False).tobytes(),
        shape=b"" if work.shape is None else work.shape[part].astype("<i8", copy=False).tobytes(),
        pad=work.recipe.pad,
        dims=work.dims,
    )
