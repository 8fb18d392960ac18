"""Parameters of the codecs for text and for unchanged bytes, and the resulting tensors. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from feedd.recipe.key_params import KeyedParams
from feedd.recipe.pack_params import PackParams, check_fill
from feedd.values import FieldKind, TensorSpec

TOKENS_MAX: Final = 1 << 24


class OwnParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of codec parameters."""

    @property
    def measured(self) -> bool:
        """Whether the decoded shape is known only after reading the sample's header."""
        return False


class KeyedShape(KeyedParams, frozen=True):
    """Base class for codecs whose values vary in size, and may be values of JSON documents (``key``)."""

    @property
    def measured(self) -> bool:
        """Whether the decoded shape is known only after reading the document."""
        return self.keeps_values

    @property
    def keeps_values(self) -> bool:
        """Whether measuring keeps the decoded values, because parsing the document is all of the work."""
        return self.key is not None


class BytesParams(OwnParams, frozen=True):
    """``bytes``: the field, unchanged."""

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8, one dimension."""
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1)


class StrParams(KeyedShape, frozen=True):
    """``str``: UTF-8 text."""

    def spec(self, name: str) -> TensorSpec:
        """TEXT, UTF-8 bytes."""
        return TensorSpec(name=name, kind=FieldKind.TEXT, dtype="uint8")


class JsonParams(KeyedShape, frozen=True):
    """``json``: JSON text, validated by the daemon and parsed by the client."""

    def spec(self, name: str) -> TensorSpec:
        """JSON, UTF-8 bytes."""
        return TensorSpec(name=name, kind=FieldKind.JSON, dtype="uint8")


class TokenizeParams(KeyedParams, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``tokenize``: UTF-8 text to token ids.

    Attributes:
        tokenizer: name of a file that the operator offers (see ``recipe.tokenizers``).
        key: see ``recipe.key_params``; the empty key tokenizes whole documents.
        max_length: maximum number of tokens; longer texts are cut, but keep their special tokens.
        fill: id that fills texts shorter than ``max_length``: the field is then DENSE, else RAGGED.
        special: whether the tokenizer adds its special tokens.
        end: id to append to each text, within ``max_length``.
        pack: puts several texts into a row, see ``batching.packing``.
        dtype: dtype of the ids.
        digest: digest of the tokenizer's file, set when the dataset is opened: another file makes another recipe.
    """

    tokenizer: str
    max_length: int | None = None
    fill: int | None = None
    special: bool = True
    end: int | None = None
    pack: PackParams | None = None
    dtype: Literal["int32", "uint32", "int64"] = "int32"
    digest: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None and not 1 <= self.max_length <= TOKENS_MAX:
            raise ValueError(f"expected a max_length of 1 to {TOKENS_MAX}, got {self.max_length}")
        if self.fill is not None and (self.max_length is None or not 0 <= self.fill < 1 << 31):
            raise ValueError(f"expected a fill of 0 or more together with max_length, got {self.fill}")
        if self.end is not None and not 0 <= self.end < 1 << 31:
            raise ValueError(f"expected an end of 0 or more, got {self.end}")
        if self.pack is not None:
            if self.fill is not None:
                raise ValueError("expected fill inside pack, got fill outside of it")
            check_fill(self.dtype, self.pack.fill)

    @property
    def keeps_values(self) -> bool:
        """Whether measuring keeps the tokens: counting them produces them, so each text is tokenized once."""
        return self.measured

    @property
    def measured(self) -> bool:
        """The number of tokens is known only after tokenizing, except with ``fill``."""
        return self.fill is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE with ``fill``, else RAGGED."""
        if self.fill is None or self.max_length is None:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)
        return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=self.dtype, shape=(self.max_length,), ndim=1)
