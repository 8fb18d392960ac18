"""Megatron's indexed datasets, with one document per sample: an index beside a file of tokens locates each document.

``NAME.idx`` is little-endian: ``MMIDIDX`` and two zero bytes, u64 version 1, u8 type of the tokens, u64 number of
sequences, u64 number of documents plus one. Then come i32 lengths of the sequences in tokens, and i64 byte offsets of
the sequences in ``NAME.bin``. Last come the i64 number of each document's first sequence, and the total number of
sequences. Multimodal data adds a byte per sequence. A document of several sequences (sentences) is their concatenation.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_spec import FormatSpec
from feedd.formats.framing import ShardReader
from feedd.formats.tokens import FIELD
from feedd.recipe.params import SAMPLE_BYTES_MAX
from feedd.shard_index import NumberedIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEGATRON: Final = "megatron"
HEAD_BYTES: Final = 34
_HEAD: Final = struct.Struct("<9sQBQQ")
_MAGIC: Final = b"MMIDIDX\0\0"
_TYPE_AT: Final = len(_MAGIC) + 8
_DTYPES: Final = ("", "uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
_HOW: Final = f"specify files of tokens as {MEGATRON}+s3://..., each .bin with its .idx beside it"


class MegatronIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about a file of tokens and its index; as JSON they follow the colon of the format's name.

    Attributes:
        etag: version of the index.
        size_bytes: size of the index.
        tokens_bytes: size of the file of tokens.
    """

    etag: str
    size_bytes: int
    tokens_bytes: int


class Head(NamedTuple):
    """The header of an index.

    Attributes:
        dtype: dtype of a token.
        sequences: number of sequences.
        documents: number of documents.
    """

    dtype: str
    sequences: int
    documents: int


def dtype_of(data: bytes | bytearray) -> str:
    """Return the dtype of the tokens from the start of an index; empty: it is not such an index."""
    if len(data) <= _TYPE_AT or data[: len(_MAGIC)] != _MAGIC or data[_TYPE_AT] >= len(_DTYPES):
        return ""
    return _DTYPES[data[_TYPE_AT]]


def with_index_file(told: MegatronIndex) -> str:
    """Return the name of the format with these parameters."""
    return f"{MEGATRON}:{msgspec.json.encode(told, order='sorted').decode()}"


def index_file_of(format_name: str) -> MegatronIndex | None:
    """Return the parameters in a format's name; None: the name is of another format, or has none."""
    kind, _, params = format_name.partition(":")
    return msgspec.json.decode(params, type=MegatronIndex) if kind == MEGATRON and params else None


def parse_head(data: bytes | bytearray, size_bytes: int, url: str) -> Head:
    """Return the header of an index.

    Args:
        data: the first ``HEAD_BYTES`` of the index, or all if it has fewer.
        size_bytes: size of the whole index.
        url: URL of the index, for errors.

    Raises:
        BadShard: not an index, or the sizes of its parts do not add up to its size.
    """

    def fail(expected: str, got: object) -> BadShard:
        message = f"expected {expected} at the start of Megatron's index, got {got}"
        return BadShard(message, object=url, hint="write it again with Megatron's preprocess_data.py", stage="decode")

    if len(data) < HEAD_BYTES:
        raise fail(f"{HEAD_BYTES} bytes", len(data))
    magic, version, _, sequences, ends = _HEAD.unpack_from(data)
    dtype = dtype_of(data)
    if magic != _MAGIC or version != 1:
        raise fail("MMIDIDX and version 1", f"{bytes(magic)!r} and {version}")
    if not dtype:
        raise fail(f"a type of 1 to {len(_DTYPES) - 1}", data[_TYPE_AT])
    whole = HEAD_BYTES + 12 * sequences + 8 * ends
    if not ends or size_bytes not in {whole, whole + sequences}:
        raise fail(f"numbers of sequences and documents that make {size_bytes} bytes", f"{sequences} and {ends}")
    return Head(dtype, sequences, ends - 1)


class MegatronFormat:
    """``protocols.ShardFormat`` of a token file's documents, read from the index beside the file; stateless.

    Args:
        params: a ``MegatronIndex`` as JSON; empty: no index is known, and nothing can be read.
    """

    def __init__(self, params: str = "") -> None:
        self._expected = msgspec.json.decode(params, type=MegatronIndex) if params else None

    @property
    def name(self) -> str:
        """Name of the format in the registry."""
        return MEGATRON

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the documents in the file of tokens; a key is the document's number.

        Args:
            data: the whole index, borrowed for the call.
            url: URL of the index, for errors.

        Raises:
            BadShard: not an index, or the index of another file of tokens.
        """
        if self._expected is None:
            raise BadShard("expected an index beside the tokens, got none", object=url, hint=_HOW, stage="decode")
        return _Reader(data, url, self._expected.tokens_bytes).read()


class _Reader(ShardReader):
    def __init__(self, data: memoryview, url: str, tokens_bytes: int) -> None:
        super().__init__(data, url)
        self._tokens_bytes = tokens_bytes
        self._head = parse_head(bytes(data[:HEAD_BYTES]), len(data), url)

    def read(self) -> ShardIndex:
        """Check the whole index, and join the sequences of each document."""
        dtype, sequences, documents = self._head
        self.check_cells(1, max(documents, sequences))
        item_bytes = np.dtype(dtype).itemsize
        lengths_at, pointers_at = HEAD_BYTES, HEAD_BYTES + 4 * sequences
        ends_at = pointers_at + 8 * sequences
        lengths = np.frombuffer(self._data, "<i4", sequences, lengths_at)
        pointers = np.frombuffer(self._data, "<i8", sequences, pointers_at)
        firsts = np.frombuffer(self._data, "<i8", documents + 1, ends_at)
        if sequences and lengths.min() < 0:
            self.fail(lengths_at, "lengths of sequences", f"{lengths.min()}")
        sizes = lengths.astype(np.int64) * item_bytes
        where = np.concatenate(([0], np.cumsum(sizes)))
        if where[-1] != self._tokens_bytes:
            self.fail(lengths_at, f"sequences of the {self._tokens_bytes} bytes beside it", f"{where[-1]} bytes")
        if not np.array_equal(pointers, where[:-1]):
            wrong = int(np.flatnonzero(pointers != where[:-1])[0])
            self.fail(pointers_at + 8 * wrong, f"a sequence at {where[wrong]}", f"{pointers[wrong]}")
        self._check_firsts(firsts, ends_at)
        starts = where[firsts[:-1]]
        sizes = where[firsts[1:]] - starts
        if documents and sizes.max() > SAMPLE_BYTES_MAX:
            self.fail(ends_at, f"documents of at most {SAMPLE_BYTES_MAX} bytes", f"{sizes.max()}")
        return NumberedIndex((FIELD,), starts[None], sizes[None], documents, encodings=(f"{dtype}[]",))

    def _check_firsts(self, firsts: NDArray[np.int64], at: int) -> None:
        if firsts[0] != 0 or firsts[-1] != self._head.sequences or (np.diff(firsts) < 0).any():
            got = f"{firsts[0]} to {firsts[-1]}" if (np.diff(firsts) >= 0).all() else "documents that go backwards"
            self.fail(at, f"documents from sequence 0 to {self._head.sequences}, in order", got)


FORMATS: Final = (FormatSpec(MegatronFormat(), with_params=MegatronFormat),)
