"""Megatron's indexed datasets, written by their layout: an index and the tokens it is of."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DTYPES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


class Builder:
    """Takes sequences one by one, as Megatron's own does: an item at a time, and a word where a document ends."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.tokens = b""
        self.lengths: list[int] = []
        self.pointers: list[int] = []
        self.documents = [0]
        self.modes: list[int] = []

    def item(self, sequence: Iterable[int], mode: int | None = None) -> None:
        """Add a sequence; ``mode`` of all or of none, as multimodal data has it."""
        self.pointers.append(len(self.tokens))
        data = b"".join(np.array(token, self.dtype).tobytes() for token in sequence)
        self.lengths.append(len(data) // np.dtype(self.dtype).itemsize)
        self.tokens += data
        if mode is not None:
            self.modes.append(mode)

    def end_document(self) -> None:
        """End a document behind the last sequence."""
        self.documents.append(len(self.lengths))

    def index(self) -> bytes:
        """Return the contents of ``.idx``."""
        head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, _DTYPES[self.dtype], len(self.lengths), len(self.documents))
        head += b"".join(struct.pack("<i", length) for length in self.lengths)
        head += b"".join(struct.pack("<q", pointer) for pointer in self.pointers)
        head += b"".join(struct.pack("<q", first) for first in self.documents)
        return head + bytes(self.modes)


def megatron(documents: Sequence[Sequence[int]], dtype: str) -> tuple[bytes, bytes]:
    """Return the contents of ``.idx`` and ``.bin``: one sequence per document."""
    builder = Builder(dtype)
    for document in documents:
        builder.item(document)
        builder.end_document()
    return builder.index(), builder.tokens
