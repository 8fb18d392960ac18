"""What daemon and decode worker say to each other: msgpack on a SEQPACKET socket pair, one message per packet.

Columns travel as raw little-endian bytes. Requests are answered in order, one reply each. What is told (``Told``)
has none, but that ``Started`` comes of ``ReportStart``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

PROTOCOL: Final = 8
"""Grows with every change here: a worker started after an upgrade on disk must not talk to an older daemon."""

MESSAGE_BYTES_MAX: Final = 96 << 10
"""Kernels let an unprivileged socket buffer about 200 KiB: two requests fit, so that sending does not wait."""

REASON_CHARS_MAX: Final = 300


class FileMessage(msgspec.Struct, frozen=True, array_like=True):
    """A shard file to map."""

    path: str
    data_at: int
    size_bytes: int
    url: str


class FieldMessage(msgspec.Struct, frozen=True, array_like=True):
    """``work.FieldWork`` of some rows; ``shape`` is empty for DENSE fields."""

    name: str
    codec: str
    params: str
    stored: str
    file_no: bytes  # int32[rows]
    start: bytes  # int64[rows]
    size: bytes  # int64[rows]
    out_at: bytes  # int64[rows]
    shape: bytes  # int64[rows, ndim]
    pad: str = ""
    dims: tuple[int, ...] = ()  # of each row, where it is padded


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """Map this arena; its descriptor comes along."""

    arena_id: int
    size_bytes: int


class Detach(msgspec.Struct, frozen=True, array_like=True, tag="detach"):
    """Unmap it."""

    arena_id: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Samples for these modules of ``codecs`` will come: import them (see ``recipe.slow_imports``)."""

    modules: tuple[str, ...]


class ReportStart(msgspec.Struct, frozen=True, array_like=True, tag="mind"):
    """Say when the request of this id, the next one, is begun: if it ends a worker again, it is not tried a third time.

    Who was dead before he read this has not begun it.
    """

    id: int


class IndexRequest(msgspec.Struct, frozen=True, array_like=True, tag="index"):
    """Where do the samples of this shard lie?"""

    id: int
    file: FileMessage
    format_name: str


class MakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="make"):
    """Make the shard; descriptors of the object, as far as it is here, and of the file to write to come along."""

    id: int
    form: str
    url: str
    size_bytes: int
    spans: tuple[tuple[int, int], ...]
    out_at: int
    limit_bytes: int
    room_bytes: int
    entry_bytes: int = -1


class PinRequest(msgspec.Struct, frozen=True, array_like=True, tag="pin"):
    """Pin the parameters of an ``npy`` field by this first sample."""

    id: int
    file: FileMessage
    start: int
    size: int
    stored: str = ""


class MeasureRequest(msgspec.Struct, frozen=True, array_like=True, tag="measure"):
    """What are the decoded shapes? Of ``values``: which numbers are they? To ``keep``: and what was decoded?"""

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


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First message of a worker. ``build``: as ``build.build_digest``; workers that say none are of an older build."""

    protocol: int
    build: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """Said before a request that is to be minded; no answer to it."""

    id: int


class Indexed(msgspec.Struct, frozen=True, array_like=True, tag="indexed"):
    """The columns come along as a memfd (see ``columns``)."""

    id: int
    busy_s: float
    fields: tuple[str, ...]
    sample_count: int
    key_bytes: int
    stored: tuple[str, ...] = ()
    notes: tuple[tuple[int, int, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()


class Made(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    """The shard is written, so many bytes of it; it is indexed by this format."""

    id: int
    busy_s: float
    size_bytes: int
    format_name: str


class NeedRanges(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """These bytes of the object must be here before the shard can be made."""

    id: int
    busy_s: float
    spans: tuple[tuple[int, int], ...]


class Pinned(msgspec.Struct, frozen=True, array_like=True, tag="pinned"):
    """Canonical parameters."""

    id: int
    busy_s: float
    params: str


class Measured(msgspec.Struct, frozen=True, array_like=True, tag="measured"):
    """Shapes, -1 in rows that cannot be measured; of values 1 and the bits of a float64.

    Where they were to be kept, the values of the first ``kept_rows`` come along as a memfd, back to back.
    """

    id: int
    busy_s: float
    shapes: bytes  # int64[rows, ndim]
    kept_rows: int = 0


class Decoded(msgspec.Struct, frozen=True, array_like=True, tag="decoded"):
    """Done; ``bad`` lists (row of the request, field of the request, reason)."""

    id: int
    busy_s: float
    bad: tuple[tuple[int, int, str], ...]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The request as a whole failed; the fields of a ``FeeddError``."""

    id: int
    busy_s: float
    kind: str
    message: str
    object: str
    hint: str


Asked: TypeAlias = IndexRequest | MakeRequest | PinRequest | MeasureRequest | DecodeRequest
Told: TypeAlias = Attach | Detach | Prepare | ReportStart
Request: TypeAlias = Told | Asked
Answer: TypeAlias = Indexed | Made | NeedRanges | Pinned | Measured | Decoded | Failed
Reply: TypeAlias = Hello | Started | Answer

request_decoder: Final = msgspec.msgpack.Decoder(Request)
reply_decoder: Final = msgspec.msgpack.Decoder(Reply)
encode: Final = msgspec.msgpack.Encoder().encode
