"""The description of a format: names of its shards, how they begin, and their reader.

A module of this folder lists its formats as ``FORMATS``; ``format_registry`` finds them there. An installed package
declares a format as an entry point of the group ``feedd.formats``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from feedd.protocols import ShardFormat
    from feedd.shard_index import ShardIndex

    Parts: TypeAlias = Sequence[memoryview | bytes]


class AmongSamples(Enum):
    """The role of an object of the format if other objects of the prefix are samples themselves."""

    SHARD = "shard"  # still a shard: a prefix holds either shards or samples, so the open fails and says so
    SAMPLE = "sample"  # a sample by itself
    COMPANION = "companion"  # a file of the sample that has the same name
    IGNORED = "ignored"  # a table or a note about the samples: no data


class ShardBytes(Protocol):
    """The bytes of a shard for a reader that only takes its length and slices without a step."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class HeaderReader(Protocol):
    """A ``ShardFormat`` whose headers lie between the samples, so that it takes short slices in ascending order."""

    def index(self, data: ShardBytes, url: str) -> ShardIndex:
        """Return the index of a shard's samples; see ``ShardFormat``."""


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """One format.

    Attributes:
        reader: finds the samples of a shard; stateless. Its name is the format's.
        extensions: endings of lower-case file names that identify the format, with their dots.
        file_names: regular expression of whole lower-case file names that identify the format; empty: none.
        with_params: makes a reader with parameters: the text after the colon of ``NAME:PARAMS``.
        begins: whether a shard, or its start, begins like this format; used for names without a known extension.
        sniff_rank: formats of a lower rank are tried first. Text matches many bytes, so it is tried last.
        first_samples: makes a smaller shard of the whole samples in a shard's first bytes, and returns its parts; no
            parts if there are none. With it, fields are found without fetching the whole first shard.
        among_samples: see ``AmongSamples``.
        reads_headers: the reader is a ``HeaderReader``. A worker then reads slices, and maps no page of the shard.
    """

    reader: ShardFormat
    extensions: tuple[str, ...] = ()
    file_names: str = ""
    with_params: Callable[[str], ShardFormat] | None = None
    begins: Callable[[memoryview], bool] | None = None
    sniff_rank: int = 0
    first_samples: Callable[[memoryview], Parts] | None = None
    among_samples: AmongSamples = AmongSamples.SHARD
    reads_headers: bool = False

    @property
    def name(self) -> str:
        """Name in the registry, such as ``tar``."""
        return self.reader.name

    @property
    def header_reader(self) -> HeaderReader | None:
        """The reader, if it reads headers."""
        return cast("HeaderReader", self.reader) if self.reads_headers else None

    @property
    def shown_names(self) -> tuple[str, ...]:
        """Names of the format's files for messages: extensions, and ``file_names`` with a star per number."""
        pattern = self.file_names.replace(r"\d+", "*").replace("\\", "")
        return (*self.extensions, pattern) if pattern else self.extensions


def cut_at(end_of: Callable[[memoryview], int], tail: bytes = b"") -> Callable[[memoryview], Parts]:
    """Return a ``first_samples`` for shards that consist of consecutive samples.

    Args:
        end_of: returns the end of the last whole sample in a shard's first bytes; 0: there is none.
        tail: bytes that end a shard.
    """

    def first_samples(data: memoryview) -> Parts:
        end = end_of(data)
        return (data[:end], tail) if end else ()

    return first_samples


def cut_rows(first_rows: Callable[[memoryview], tuple[bytes, memoryview]]) -> Callable[[memoryview], Parts]:
    """Return a ``first_samples`` for shards with a head that must change.

    Args:
        first_rows: returns the head and the rows of a shard of the whole rows; both are empty if none is whole.
    """

    def first_samples(data: memoryview) -> Parts:
        head, rows = first_rows(data)
        return (head, rows) if head else ()

    return first_samples
