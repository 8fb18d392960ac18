"""Parameters of the codecs of text and of bytes as they are, and what comes out of them. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from feedd.recipe.key_params import KeyedParams
from feedd.recipe.pack_params import PackParams, check_fill
from feedd.values import FieldKind, TensorSpec

TOKENS_MAX: Final = 1 << 24


class OwnParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What parameters of codecs have in common."""

    @property
    def measured(self) -> bool:
        """Whether the decoded shape is known only after reading the sample's header."""
        return False


class KeyedShape(KeyedParams, frozen=True):
    """Of codecs whose values differ in size, and lie in JSON documents where there is a ``key``."""

    @property
    def measured(self) -> bool:
        """Whether the decoded shape is known only after reading the document."""
        return self.kept

    @property
    def kept(self) -> bool:
        """Whether what measures values keeps them: of documents that is all of the work."""
        return self.key is not None


class BytesParams(OwnParams, frozen=True):
    """``bytes``: the field as it is."""

    def spec(self, name: str) -> TensorSpec:
        """RAGGED uint8."""
        return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype="uint8", ndim=1)


class StrParams(KeyedShape, frozen=True):
    """``str``: UTF-8 text."""

    def spec(self, name: str) -> TensorSpec:
        """TEXT."""
        return TensorSpec(name=name, kind=FieldKind.TEXT, dtype="uint8")


class JsonParams(KeyedShape, frozen=True):
    """``json``: JSON text, checked here and parsed by the client."""

    def spec(self, name: str) -> TensorSpec:
        """JSON."""
        return TensorSpec(name=name, kind=FieldKind.JSON, dtype="uint8")


class TokenizeParams(KeyedParams, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``tokenize``: UTF-8 text to token ids.

    Attributes:
        tokenizer: name of a file that the operator offers (see ``recipe.tokenizers``).
        key: see ``recipe.key_params``; the empty one says that documents are text as they lie there.
        max_length: so many tokens at most; what is longer is cut, its special tokens kept.
        fill: id that fills what is shorter than ``max_length``: DENSE then, else RAGGED.
        special: whether the tokenizer adds its special tokens.
        end: id that is put behind the tokens of each text, within ``max_length``.
        pack: several texts to a row, see ``batching.packing``.
        dtype: of the ids.
        digest: of the tokenizer's file; filled in where the dataset is opened, so that another file is another recipe.
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
            raise ValueError(f"expected a fill of 0 or more beside max_length, got {self.fill}")
        if self.end is not None and not 0 <= self.end < 1 << 31:
            raise ValueError(f"expected an end of 0 or more, got {self.end}")
        if self.pack is not None:
            if self.fill is not None:
                raise ValueError("expected fill within pack, got fill beside it")
            check_fill(self.dtype, self.pack.fill)

    @property
    def kept(self) -> bool:
        """Whether texts are tokenized once: whoever counts the tokens keeps them."""
        return self.measured

    @property
    def measured(self) -> bool:
        """How many tokens there are is known only by making them."""
        return self.fill is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE with ``fill``, else RAGGED."""
        if self.fill is None or self.max_length is None:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)
        return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=self.dtype, shape=(self.max_length,), ndim=1)
