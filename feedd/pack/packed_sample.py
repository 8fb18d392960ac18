"""The samples of a shard that is being written, and the seam of the formats that they are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from feedd.errors import BadSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from feedd.pack.destination import ShardRecord

    Piece: TypeAlias = bytes | memoryview

LABEL: Final = "cls"
"""Extension of the class number of a sample, as WebDataset names it."""

KEY: Final = "__key__"
"""Name of the field with the sample's key, in formats with named fields."""

NUMBERS: Final = frozenset({"cls", "cls2", "int"})
"""Extensions of objects that hold one whole number as text."""

TEXTS: Final = frozenset({"txt", "text", "caption", "transcript", "xml", "id"})
"""Extensions of objects that hold UTF-8 text."""

JSONS: Final = frozenset({"json", "jsn"})
"""Extensions of objects that hold one JSON value."""

IMAGES: Final = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"})
"""Extensions of encoded images."""

RESIZABLE: Final = frozenset({"jpg", "jpeg", "png", "webp"})
"""Extensions of images that ``--resize`` writes again."""


class Part(NamedTuple):
    """One object of a sample.

    Attributes:
        extension: its extension, in lower case.
        name: its path below the source's folder.
        data: its bytes.
    """

    extension: str
    name: str
    data: Piece


class PackedSample(NamedTuple):
    """One sample.

    Attributes:
        key: path below the source's folder, without an extension.
        parts: its objects, in the order of the listing; a label from the folder's name is the last.
    """

    key: str
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of all samples of a source, known before the first shard is written.

    Attributes:
        counts: number of samples that have each extension, in the order of first appearance.
        sample_count: number of samples.
    """

    counts: Mapping[str, int]
    sample_count: int

    @property
    def incomplete(self) -> list[str]:
        """Extensions that some samples lack."""
        return [name for name, count in self.counts.items() if count < self.sample_count]


class ShardWriter(Protocol):
    """Writes shards of one format; stateless. The output for the same samples is always the same."""

    @property
    def name(self) -> str:
        """The format, as ``--format`` names it."""

    @property
    def extension(self) -> str:
        """Extension of its shards."""

    def check(self, fields: Fields) -> None:
        """Check that the format can hold these fields.

        Raises:
            Unsupported: it cannot.
        """

    def framed_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes of a shard objects of these sizes take, roughly."""

    def pieces(self, samples: Iterable[PackedSample], fields: Fields) -> Iterable[Piece]:
        """Yield the bytes of a shard, piece by piece.

        Raises:
            BadSample: the format cannot hold a sample; the message names the sample.
        """

    def sidecars(self, names: Sequence[str], records: Sequence[ShardRecord], fields: Fields) -> Mapping[str, bytes]:
        """Return objects that readers of the format expect beside all shards, by name."""


def number_of(part: Part) -> int:
    """Return the whole number that an object holds as text.

    Raises:
        BadSample: the object holds something else.
    """
    text = bytes(part.data[:64])
    try:
        number = int(text)
    except ValueError:
        number = 1 << 63
    if not -(1 << 63) <= number < 1 << 63:
        raise BadSample(f"expected a whole number of 64 bits as text, got {text!r}", object=part.name, stage="pack")
    return number
