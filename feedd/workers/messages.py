"""Messages between daemon and decode worker: msgpack on a SEQPACKET socket pair, one message per packet.

Columns travel as raw little-endian bytes. Requests are answered in order, one reply each. Messages of type ``Told``
have no reply, except that ``ReportStart`` leads to ``Started``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from feedd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.flow.sink_file import OpenFile


PROTOCOL: Final = 13
"""Bump it with every change here: a worker started after an upgrade on disk must not talk to an older daemon."""

MESSAGE_BYTES_MAX: Final = 96 << 10
"""Kernels let an unprivileged socket buffer about 200 KiB: two requests fit, so that sending does not wait."""

REASON_CHARS_MAX: Final = 300


class FileMessage(msgspec.Struct, frozen=True, array_like=True):
    """A shard file to map; ``given``: its place among the descriptors of the message; -1: open ``path``."""

    path: str
    data_at: int
    size_bytes: int
    url: str
    given: int = -1


class FieldMessage(msgspec.Struct, frozen=True, array_like=True):
    """``work.FieldWork`` for some rows; ``shape`` is empty for DENSE fields."""

    name: str
    codec: str
    params: str
    encoding: str
    file_no: bytes  # int32[rows]
    start: bytes  # int64[rows]
    size: bytes  # int64[rows]
    out_at: bytes  # int64[rows]
    shape: bytes  # int64[rows, ndim]
    pad: str = ""
    dims: tuple[int, ...] = ()  # shape of each row, if the field is padded


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """Map this arena; its descriptor comes with the message."""

    arena_id: int
    size_bytes: int


class Detach(msgspec.Struct, frozen=True, array_like=True, tag="detach"):
    """Unmap this arena."""

    arena_id: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Data for these modules of ``codecs`` and these converters will come: import what they need.

    See ``recipe.slow_imports`` for the modules, and ``tables.registry`` for the converters.
    ``when_idle``: such data may come; import once no request has come for a moment.
    """

    modules: tuple[str, ...] = ()
    converters: tuple[str, ...] = ()
    when_idle: bool = False


class ReportStart(msgspec.Struct, frozen=True, array_like=True, tag="report_start"):
    """Answer ``Started`` when the request with this id, which comes next, is begun.

    If that request kills the worker after ``Started``, its row is given up. A worker that died before it read this
    message has not begun the request.
    """

    id: int


class IndexRequest(msgspec.Struct, frozen=True, array_like=True, tag="index"):
    """Return the index of this shard. ``object_bytes``: its size in the store. ``limits``: ``IndexLimits``."""

    id: int
    file: FileMessage
    format_name: str
    object_bytes: int = 0
    limits: tuple[int, int] = (1 << 62, 1 << 26)


class MakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="make"):
    """Convert an object. Descriptors of its available ranges and of the file to write come with the message."""

    id: int
    converter: str
    params: bytes  # of the converter, compressed by zlib because they may be long
    url: str
    size_bytes: int
    spans: tuple[tuple[int, int], ...]
    out_at: int
    limit_bytes: int
    memory_bytes: int
    entry_bytes: int = -1
    groups: tuple[int, int] = (0, 0)  # row groups to write to their places in the table; none: the whole shard is made
    limits: tuple[int, int] = (1 << 62, 1 << 26)  # ``shard_index.IndexLimits`` of the shard


class PinRequest(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """Return the parameters of an ``npy`` field according to this first sample."""

    id: int
    file: FileMessage
    start: int
    size: int
    encoding: str = ""


class MeasureRequest(msgspec.Struct, frozen=True, array_like=True, tag="measure"):
    """Return the decoded shapes; with ``values`` the numbers; with ``keep`` also the decoded values."""

    id: int
    files: tuple[FileMessage, ...]
    field: FieldMessage
    values: bool = False
    keep: bool = False


class DecodeRequest(msgspec.Struct, frozen=True, array_like=True, tag="decode"):
    """Decode these rows into the arena."""

    id: int
    files: tuple[FileMessage, ...]
    arena_id: int
    slot_at: int
    fields: tuple[FieldMessage, ...]
    seeds: bytes  # uint64[rows]


class ColumnMessage(msgspec.Struct, frozen=True, array_like=True):
    """A field whose values lie at regular distances: in each file, ``at`` is the first, ``step_bytes`` the distance."""

    name: str
    codec: str
    params: str
    encoding: str
    at: tuple[int, ...]
    step_bytes: tuple[int, ...]


class GatherRequest(msgspec.Struct, frozen=True, array_like=True, tag="gather"):
    """Copy these rows of numbers into the arena, each batch's values of a field back to back."""

    id: int
    files: tuple[FileMessage, ...]
    arena_id: int
    columns: tuple[ColumnMessage, ...]
    file_no: bytes  # uint16[rows]; empty: all rows lie in the only file
    ordinal: bytes  # uint32[rows]
    batch_ends: tuple[int, ...]
    out_at: bytes  # int64[batches, columns], offset in the arena
    are_consecutive: bool = False  # rows of a batch are successive samples: the two arrays tell each batch's first row
    rows_at: int = (
        -1
    )  # offset in the arena of ordinal, and file_no behind it, where the batches will lie; -1: they came


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a worker. ``build``: see ``build.build_digest``; empty from workers of an older build."""

    protocol: int
    build: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """Sent before the request that ``ReportStart`` named; there is no answer to it."""

    id: int


class Indexed(msgspec.Struct, frozen=True, array_like=True, tag="indexed"):
    """The index's columns come with the message as a memfd (see ``index_columns``)."""

    id: int
    busy_s: float
    fields: tuple[str, ...]
    sample_count: int
    key_bytes: int
    encodings: tuple[str, ...] = ()
    notes: tuple[tuple[int, int, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    has_reasons: bool = False
    strides: tuple[tuple[int, int, int] | None, ...] = ()  # see ``ShardIndex``
    is_regular: bool = False  # see ``ShardIndex``; the memfd is empty
    layouts: tuple[tuple[int, int, int], ...] = ()  # of each ``PackedColumn``: bytes of a number, no sizes or 0, gap


class ConvertedAnswer(msgspec.Struct, frozen=True, array_like=True, tag="converted"):
    """The shard is written, with this many bytes; ``format_name`` is the format that indexes it.

    ``index`` is the shard's index if it is regular and small enough.
    """

    id: int
    busy_s: float
    size_bytes: int
    format_name: str
    index: Indexed | None = None


class TablePlanMessage(msgspec.Struct, frozen=True, array_like=True):
    """``tables.task.TablePlan``: of each of ``groups``, where it ends, and its ranges."""

    size_bytes: int
    groups: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
    index: Indexed | None = None


class NeedRanges(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """These ranges of the object must be available before the conversion."""

    id: int
    busy_s: float
    spans: tuple[tuple[int, int], ...]
    plan: TablePlanMessage | None = None  # then ``spans`` is empty


class Pinned(msgspec.Struct, frozen=True, array_like=True, tag="pinned"):
    """Canonical parameters of an ``npy`` field."""

    id: int
    busy_s: float
    params: str


class Measured(msgspec.Struct, frozen=True, array_like=True, tag="measured"):
    """Shapes, -1 in rows that cannot be measured; for ``values``, 1 and the bits of a float64.

    For ``keep``, the values of the first ``retained_rows`` rows come with the message as a memfd, back to back.
    """

    id: int
    busy_s: float
    shapes: bytes  # int64[rows, ndim]
    retained_rows: int = 0


class Decoded(msgspec.Struct, frozen=True, array_like=True, tag="decoded"):
    """Done; ``bad`` lists (row of the request, field of the request, reason)."""

    id: int
    busy_s: float
    bad: tuple[tuple[int, int, str], ...]


class Gathered(msgspec.Struct, frozen=True, array_like=True, tag="gathered"):
    """Done, but for the rows ``undone``: they lie outside their file, or a number does not fit its type."""

    id: int
    busy_s: float
    undone: bytes = b""  # int32[]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The whole request failed; with the fields of a ``FeeddError``."""

    id: int
    busy_s: float
    kind: str
    message: str
    object: str
    hint: str


RequestContext: TypeAlias = IndexRequest | MakeRequest | PinRequest | MeasureRequest | DecodeRequest | GatherRequest
Told: TypeAlias = Attach | Detach | Prepare | ReportStart
Request: TypeAlias = Told | RequestContext
Answer: TypeAlias = Indexed | ConvertedAnswer | NeedRanges | Pinned | Measured | Decoded | Gathered | Failed
Reply: TypeAlias = Hello | Started | Answer


class Packet(NamedTuple):
    """A message as it is sent.

    Attributes:
        payload: the encoded message.
        fds: descriptors to send with it; they stay the sender's.
        opened: files among them that were opened for this packet, and are closed with it.
    """

    payload: bytes
    fds: tuple[int, ...] = ()
    opened: tuple[OpenFile, ...] = ()


request_decoder: Final = msgspec.msgpack.Decoder(Request)
reply_decoder: Final = msgspec.msgpack.Decoder(Reply)
encode: Final = msgspec.msgpack.Encoder().encode


SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
"""Error numbers of the kernel if there is no room for a descriptor: nothing was sent, and the socket is unchanged."""


DESCRIPTORS_MAX: Final = 253
"""Descriptors that one message can carry, ``SCM_MAX_FD`` of the kernel."""


def out_of_descriptors(reason: str = "none could be received") -> ResourceExhausted:
    """Return the error of a process that may open no more files, and so can neither send nor receive a descriptor."""
    return ResourceExhausted(
        f"expected room for a descriptor between daemon and decode worker, got: {reason}",
        hint="raise the limit on open files (ulimit -n)",
        stage="decode",
    )


def copies(fds: Iterable[int]) -> list[int]:
    """Return duplicates of descriptors: all of them, or none.

    Raises:
        ResourceExhausted: no more files may be open.
    """
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except OSError as error:
        close_all(made)
        if error.errno in SCARCE:
            raise out_of_descriptors(str(error.strerror)) from error
        raise
    return made


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors that came with a message, or were to be sent with one."""
    for fd in fds:
        os.close(fd)
