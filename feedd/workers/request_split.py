"""Builds packets from calls: the rows of a chunk, with only the files that these rows need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.workers.messages import DecodeRequest, FieldMessage, FileMessage, MeasureRequest, Packet, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.values import ShardFile
    from feedd.workers.work import DecodeTask, FieldWork

_FEW_FILES: Final = 8  # up to this many files are all sent: choosing among them costs as much as the request


def file_messages(files: Sequence[ShardFile]) -> tuple[tuple[FileMessage, ...], tuple[int, ...]]:
    """Return what a worker needs to map files, and the descriptors to send along."""
    fds: list[int] = []
    found: list[FileMessage] = []
    for file in files:
        given = -1
        if file.fd >= 0:
            given = len(fds)
            fds.append(file.fd)
        found.append(FileMessage(file.path, file.data_at, file.ref.size_bytes, file.ref.url, given))
    return tuple(found), tuple(fds)


def decode_packet(task: DecodeTask, rows: range, request_id: int) -> Packet:
    """Return the request to decode ``rows`` of ``task``."""
    files, fds, renumber = _files(task.files, task.fields, rows)
    fields = tuple(_field(work, rows, renumber) for work in task.fields)
    seeds = task.seeds[rows.start : rows.stop].astype("<u8", copy=False).tobytes()
    return Packet(encode(DecodeRequest(request_id, files, task.arena_id, task.slot_at, fields, seeds)), fds)


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
    needed, fds, renumber = _files(files, (work,), rows)
    return Packet(encode(MeasureRequest(request_id, needed, _field(work, rows, renumber), values, keep)), fds)


def _files(
    files: Sequence[ShardFile], fields: Sequence[FieldWork], rows: range
) -> tuple[tuple[FileMessage, ...], tuple[int, ...], NDArray[np.int32] | None]:
    """Return the files that ``rows`` need, their descriptors, and their new numbers.

    The numbers are int32[files], by old number; None: unchanged.
    """
    if len(files) <= _FEW_FILES and len(rows) > 1:  # the request for a single row is kept as small as possible
        return *file_messages(files), None
    needed = np.zeros(len(files), np.bool_)
    for work in fields:
        needed[work.file_no[rows.start : rows.stop]] = True
    used = np.flatnonzero(needed)
    renumber = np.zeros(len(files), np.int32)
    renumber[used] = np.arange(len(used))
    return *file_messages([files[old] for old in used.tolist()]), renumber


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
