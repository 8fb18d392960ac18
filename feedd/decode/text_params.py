"""Parameters of the ``tokenize`` codec, and what comes out of it. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from feedd.values import FieldKind, TensorSpec

TOKENS_MAX: Final = 1 << 24


class TokenizeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``tokenize``: UTF-8 text to token ids.

    Attributes:
        tokenizer: name of a file that the operator offers (see ``decode.tokenizers``).
        max_length: so many tokens at most; what is longer is cut, its special tokens kept.
        fill: id that fills what is shorter than ``max_length``: DENSE then, else RAGGED.
        special: whether the tokenizer adds its special tokens.
        dtype: of the ids.
        digest: of the tokenizer's file; filled in where the dataset is opened, so that another file is another recipe.
    """

    tokenizer: str
    max_length: int | None = None
    fill: int | None = None
    special: bool = True
    dtype: Literal["int32", "uint32", "int64"] = "int32"
    digest: str = ""

    def __post_init__(self) -> None:
        if self.max_length is not None and not 1 <= self.max_length <= TOKENS_MAX:
            raise ValueError(f"expected a max_length of 1 to {TOKENS_MAX}, got {self.max_length}")
        if self.fill is not None and (self.max_length is None or not 0 <= self.fill < 1 << 31):
            raise ValueError(f"expected a fill of 0 or more beside max_length, got {self.fill}")

    @property
    def measured(self) -> bool:
        """How many tokens there are is known only by making them."""
        return self.fill is None

    def spec(self, name: str) -> TensorSpec:
        """DENSE with ``fill``, else RAGGED."""
        if self.fill is None or self.max_length is None:
            return TensorSpec(name=name, kind=FieldKind.RAGGED, dtype=self.dtype, ndim=1)
        return TensorSpec(name=name, kind=FieldKind.DENSE, dtype=self.dtype, shape=(self.max_length,), ndim=1)
