"""From calls to packets: the rows of a chunk, with only the files those rows need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.decode.messages import DecodeRequest, FieldMessage, FileMessage, MeasureRequest, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.decode.work import DecodeTask, FieldWork
    from feedd.values import ShardFile


def file_message(file: ShardFile) -> FileMessage:
    """Return what a worker needs to map ``file``."""
    return FileMessage(file.path, file.data_at, file.ref.size_bytes, file.ref.url)


def decode_packet(task: DecodeTask, rows: range, request_id: int) -> bytes:
    """Return the request to decode ``rows`` of ``task``."""
    files, file_nos = _files(task.files, task.fields, rows)
    fields = tuple(_field(work, rows, file_no) for work, file_no in zip(task.fields, file_nos, strict=True))
    seeds = task.seeds[rows.start : rows.stop].astype("<u8").tobytes()
    return encode(DecodeRequest(request_id, files, task.arena_id, task.slot_at, fields, seeds))


def measure_packet(files: Sequence[ShardFile], work: FieldWork, rows: range, request_id: int) -> bytes:
    """Return the request to measure ``rows`` of one field."""
    needed, (file_no,) = _files(files, (work,), rows)
    return encode(MeasureRequest(request_id, needed, _field(work, rows, file_no)))


def _files(
    files: Sequence[ShardFile], fields: Sequence[FieldWork], rows: range
) -> tuple[tuple[FileMessage, ...], NDArray[np.intp]]:
    """Return the files that ``rows`` need and, per field and row, which of those it is."""
    wanted = np.stack([work.file_no[rows.start : rows.stop] for work in fields])
    used, renumbered = np.unique(wanted, return_inverse=True)
    return tuple(file_message(files[number]) for number in used.tolist()), renumbered.reshape(wanted.shape)


def _field(work: FieldWork, rows: range, file_no: NDArray[np.intp]) -> FieldMessage:
    part = slice(rows.start, rows.stop)
    return FieldMessage(
        name=work.recipe.name,
        codec=work.recipe.codec,
        params=work.recipe.params,
        file_no=file_no.astype("<i4").tobytes(),
        start=work.start[part].astype("<i8").tobytes(),
        size=work.size[part].astype("<i8").tobytes(),
        out_at=work.out_at[part].astype("<i8").tobytes(),
        shape=b"" if work.shape is None else work.shape[part].astype("<i8").tobytes(),
    )
