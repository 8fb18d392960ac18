"""Files of token ids only, split into windows by the recipe: each sample is a number of tokens from some offset.

- ``tokens``: ids back to back, as nanoGPT and Megatron write ``.bin``.
- ``tokens-llmc``: ids behind 256 int32 (magic, version, number of tokens), as llm.c and modded-nanogpt write.
- ``tokens-npy``: one array of one dimension, ``.npy``.

Windows never cross files. The number of windows follows from a file's size alone, so the number of steps is known in
advance. The assumptions about a file are checked when the file is read.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from feedd.errors import BadSample, BadShard
from feedd.formats.format_spec import FormatSpec
from feedd.formats.framing import ShardReader
from feedd.formats.npy_header import read_npy_head
from feedd.recipe.params import DTYPES
from feedd.shard_index import NumberedIndex, RegularIndex, ShardIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELD: Final = "tokens"
RAW, LLMC, NPY = "tokens", "tokens-llmc", "tokens-npy"
_BY_EXTENSION: Final = {".bin": RAW}  # a .npy file without a named format is a sample
_OTHERS: Final = re.compile(r"chunk-\d+-\d+\.bin|.*\.zstd\.bin")  # LitData's files
_HEAD_BYTES: Final = {RAW: 0, LLMC: 1024, NPY: 128}
_LLMC_DTYPES: Final = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # by magic and version
HEAD_BYTES_MAX: Final = max(_HEAD_BYTES.values())
SAY_HOW: Final = (
    'say how many tokens a sample has: fields={"tokens": "tokens:uint16:2049"}; or put megatron+ in front of the URL '
    "if each .bin has an .idx beside it, and samples are its documents"
)
"""Advice for a file of tokens without a recipe for its samples."""


class TokenWindows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a file of tokens is split; as JSON it follows the colon of a format's name.

    Attributes:
        dtype: dtype of an id.
        count: tokens per window.
        stride: tokens from the start of one window to the start of the next.
        last: what happens to tokens behind the last whole window: ``drop`` or ``pad``.
    """

    dtype: str
    count: int
    stride: int
    last: Literal["drop", "pad"] = "drop"

    @property
    def item_bytes(self) -> int:
        """Bytes of an id."""
        return np.dtype(self.dtype).itemsize

    def windows(self, token_count: int) -> int:
        """Return the number of windows in ``token_count`` tokens; a short last window needs a token of its own."""
        whole = max(token_count - self.count, -self.stride) // self.stride + 1
        left = token_count - whole * self.stride
        overlap = max(self.count - self.stride, 0) if whole else 0
        return whole + (self.last == "pad" and left > overlap)

    def left(self, token_count: int) -> int:
        """Return how many of ``token_count`` tokens are behind the last window, and so in no sample."""
        if self.last == "pad":
            return 0
        count = self.windows(token_count)
        return token_count - ((count - 1) * self.stride + self.count if count else 0)


def kind_of(named: str, url: str) -> str:
    """Return which token format a file has; empty: none.

    Args:
        named: the format that the URL names; empty: the file's name decides.
        url: URL of the file.
    """
    if named:
        return named if named in _HEAD_BYTES else ""
    file_name = url.rsplit("/", 1)[-1].lower()
    kind = next((kind for ending, kind in _BY_EXTENSION.items() if file_name.endswith(ending)), "")
    return "" if _OTHERS.fullmatch(file_name) else kind


def with_windows(kind: str, cut: TokenWindows) -> str:
    """Return the name of a format with its parameters."""
    return f"{kind}:{msgspec.json.encode(cut, order='sorted').decode()}"


def window_count(kind: str, size_bytes: int, cut: TokenWindows) -> int:
    """Return the number of samples in a file of this size."""
    return cut.windows(token_count(kind, size_bytes, cut))


def token_count(kind: str, size_bytes: int, cut: TokenWindows) -> int:
    """Return the number of tokens in a file of this size."""
    return max(size_bytes - _HEAD_BYTES[kind], 0) // cut.item_bytes


class TokensFormat:
    """``protocols.ShardFormat`` of one of the token formats; stateless.

    Args:
        kind: name of the format.
        params: a ``TokenWindows`` as JSON; empty: the windows are unknown, and nothing can be read.
    """

    def __init__(self, kind: str, params: str = "") -> None:
        self._kind = kind
        self._windows = windows_in(params) if params else None

    @property
    def name(self) -> str:
        """Name of the format in the registry."""
        return self._kind

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of the windows; a key is the window's number in the file.

        Args:
            data: the whole object, borrowed for the call.
            url: URL of the object, for errors.

        Raises:
            BadShard: the file contradicts its name or the recipe, or has too many windows.
        """
        if self._windows is None:
            raise BadShard("expected a recipe that splits tokens, got none", object=url, hint=SAY_HOW, stage="decode")
        return _Reader(data, url, self._kind, self._windows).read()


def tokens_at(head: memoryview, size_bytes: int, url: str, format_name: str) -> int:
    """Check a file by its first bytes and its size, and return the offset of its first token.

    Args:
        head: the first ``HEAD_BYTES_MAX`` bytes of the file.
        size_bytes: size of the whole file.
        url: URL of the file, for errors.
        format_name: one of the token formats, with its windows.

    Raises:
        BadShard: the file contradicts its name or the recipe.
    """
    kind, _, params = format_name.partition(":")
    return _Reader(head, url, kind, windows_in(params), size_bytes).checked()


def windows_in(params: str) -> TokenWindows:
    """Return the windows that the parameters of a format's name tell."""
    return msgspec.json.decode(params, type=TokenWindows)


class _Reader(ShardReader):
    def __init__(self, data: memoryview, url: str, kind: str, cut: TokenWindows, size_bytes: int = -1) -> None:
        super().__init__(data, url)
        self._kind, self._windows = kind, cut
        self._total = len(data) if size_bytes < 0 else size_bytes

    def checked(self) -> int:
        """Check the file by its first bytes and its size; return the offset of its first token."""
        cut, total = self._windows, self._total
        if self._kind == RAW:
            at = 0
            self._refuse_header()
        else:
            at = self._llmc() if self._kind == LLMC else self._npy()
        if (total - at) % cut.item_bytes:
            self.fail(at, f"a whole number of {cut.dtype}", f"{total - at} bytes")
        return at

    def read(self) -> ShardIndex:
        """Check the file and return the index of its windows."""
        cut, total = self._windows, self._total
        at = self.checked()
        count = window_count(self._kind, total, cut)
        step_bytes, size_bytes = cut.stride * cut.item_bytes, cut.count * cut.item_bytes
        stored = (f"{cut.dtype}[]",)
        is_regular = not count or at + (count - 1) * step_bytes + size_bytes <= total
        self.check_cells(1, count, column_count=int(not is_regular))
        if is_regular:
            return RegularIndex((FIELD,), ((at, step_bytes, size_bytes),), count, stored)
        starts: NDArray[np.int64] = at + np.arange(count, dtype=np.int64) * step_bytes  # the last window is shorter
        sizes = np.minimum(size_bytes, total - starts)
        return NumberedIndex((FIELD,), starts[None], sizes[None], count, encodings=stored)

    def _refuse_header(self) -> None:
        """Refuse a file with llm.c's header, which would otherwise begin with 512 wrong tokens."""
        said = self._said()
        if said is not None and said[0] in _LLMC_DTYPES:
            dtype, tokens = _LLMC_DTYPES[said[0]], said[1]
            if _HEAD_BYTES[LLMC] + tokens * np.dtype(dtype).itemsize == self._total:
                hint = f"put {LLMC}+ in front of its URL"
                raise BadShard("expected tokens only, got llm.c's header", object=self._url, hint=hint, stage="decode")

    def _said(self) -> tuple[tuple[int, int], int] | None:
        """Return ((magic, version), number of tokens) if the file is large enough for a header."""
        if len(self._data) < _HEAD_BYTES[LLMC]:
            return None
        magic, version, tokens = np.frombuffer(self._data, "<i4", 3).tolist()
        return (magic, version), tokens

    def _llmc(self) -> int:
        head, said = _HEAD_BYTES[LLMC], self._said()
        if said is None or said[0] not in _LLMC_DTYPES:
            self.fail(0, "llm.c's header", f"{said[0] if said else self._total}")
        dtype, tokens = _LLMC_DTYPES[said[0]], said[1]
        if dtype != self._windows.dtype:
            self.fail(0, f"{self._windows.dtype}, as the recipe says", dtype)
        if head + tokens * self._windows.item_bytes != self._total:
            self.fail(8, f"the number of tokens in {self._total} bytes", str(tokens))
        return head

    def _npy(self) -> int:
        try:
            header = read_npy_head(self._data, DTYPES)
        except BadSample as error:
            self.fail(0, "a .npy file", error.message)
        if len(header.shape) != 1 or header.dtype != np.dtype(self._windows.dtype).newbyteorder("<"):
            self.fail(
                0, f"one dimension of {self._windows.dtype}, as the recipe says", f"{header.dtype}{list(header.shape)}"
            )
        if header.data_at + header.shape[0] * self._windows.item_bytes != self._total:
            self.fail(0, f"{header.shape[0]} tokens in {self._total} bytes", "a file of another size")
        if header.data_at != _HEAD_BYTES[NPY]:  # the number of windows was computed with this size
            self.fail(0, f"a header of {_HEAD_BYTES[NPY]} bytes, as numpy writes it", f"{header.data_at}")
        return header.data_at


FORMATS: Final = tuple(
    FormatSpec(TokensFormat(kind), with_params=functools.partial(TokensFormat, kind)) for kind in (RAW, LLMC, NPY)
)
