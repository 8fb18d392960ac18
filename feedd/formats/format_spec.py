"""What feedd must know of a format: how its shards are named, how they begin, and what reads them.

A module of this folder lists its formats as ``FORMATS``; ``format_registry`` finds them there. An installed package
names one as an entry point of the group ``feedd.formats``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from feedd.protocols import ShardFormat

    Parts: TypeAlias = Sequence[memoryview | bytes]


class AmongSamples(Enum):
    """What an object of the format is where other objects of the prefix are samples by themselves."""

    SHARD = "shard"  # still a shard: a prefix holds either shards or samples, so the open fails and says so
    SAMPLE = "sample"  # a sample by itself
    COMPANION = "companion"  # a file of the sample that has the same name
    IGNORED = "ignored"  # a table or a note about the samples: no data


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """One format.

    Attributes:
        reader: finds the samples of a shard; stateless. Its name is the format's.
        extensions: ends of lower-case file names by which the format is known, with their dots.
        file_names: regular expression of whole lower-case file names that have no such end; empty: there are none.
        with_params: makes a reader that takes parameters: the text behind the colon of ``NAME:PARAMS``.
        begins: whether a shard, whole or only its start, begins like this format. Names that say nothing are told so.
        sniff_rank: formats of a lower rank are asked first. Text, which many bytes look like, is asked last.
        first_samples: makes a smaller shard of the samples that are whole in a shard's first bytes, and returns its
            parts; no parts: none is whole. With it, fields are found without fetching the whole first shard.
        among_samples: see ``AmongSamples``.
    """

    reader: ShardFormat
    extensions: tuple[str, ...] = ()
    file_names: str = ""
    with_params: Callable[[str], ShardFormat] | None = None
    begins: Callable[[memoryview], bool] | None = None
    sniff_rank: int = 0
    first_samples: Callable[[memoryview], Parts] | None = None
    among_samples: AmongSamples = AmongSamples.SHARD

    @property
    def name(self) -> str:
        """Name in the registry, such as ``tar``."""
        return self.reader.name

    @property
    def shown_names(self) -> tuple[str, ...]:
        """How files of the format are called, for people: extensions, and ``file_names`` with a star per number."""
        pattern = self.file_names.replace(r"\d+", "*").replace("\\", "")
        return (*self.extensions, pattern) if pattern else self.extensions


def cut_at(end_of: Callable[[memoryview], int], tail: bytes = b"") -> Callable[[memoryview], Parts]:
    """Return a ``first_samples`` for shards that are their samples one after another.

    Args:
        end_of: returns where the last whole sample ends in a shard's first bytes; 0: none is whole.
        tail: ends a shard.
    """

    def cut(data: memoryview) -> Parts:
        end = end_of(data)
        return (data[:end], tail) if end else ()

    return cut


def cut_rows(first_rows: Callable[[memoryview], tuple[bytes, memoryview]]) -> Callable[[memoryview], Parts]:
    """Return a ``first_samples`` for shards with a head that must change.

    Args:
        first_rows: returns the head and the rows of a shard of the whole rows; both are empty if none is whole.
    """

    def cut(data: memoryview) -> Parts:
        head, rows = first_rows(data)
        return (head, rows) if head else ()

    return cut
