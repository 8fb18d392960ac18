"""What a user is told of data that is left out or changed: one table of kinds, and the notices that Open answers with.

Every place that leaves out or changes what a user may take for data has a kind here. A kind has a text, a level, a
label of the metric, and a row in ``docs/guides/bad-samples.md``; a test holds all of them together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EXAMPLES_MAX: Final = 3
NOTICES_MAX: Final = 32
TEXT_CHARS_MAX: Final = 1000
_EXAMPLE_CHARS_MAX: Final = 120
OBJECTS_EVENT: Final = "objects are passed over"
"""The log event of a listing that leaves out objects. Commands that print the notices leave it out of their log."""
SIDECARS_EVENT: Final = "sample counts beside the data are passed over"
"""Likewise, of files beside the data."""


class NoticeKind(enum.Enum):
    """A kind, by its name on the wire, in ``stats()`` and as a label of the metric."""

    HIDDEN_SHARDS = "hidden-shards"
    HIDDEN_FILES = "hidden-files"
    SIDE_FILES = "side-files"
    TABLES_BESIDE_TARS = "tables-beside-tars"
    TABLES_BESIDE_SAMPLES = "tables-beside-samples"
    LONE_COMPANIONS = "lone-companions"
    UNKNOWN_OBJECTS = "unknown-objects"
    SPLITS_TOGETHER = "splits-together"
    UNUSED_SIDECARS = "unused-sidecars"
    UNUSED_COUNTS = "unused-counts"
    CUT_TAILS = "cut-tails"
    SHORT_FILES = "short-files"
    UNREAD_COLUMNS = "unread-columns"
    PICKLED_COLUMNS = "pickled-columns"
    RESERVED_NAMES = "reserved-names"
    LATE_FIELDS = "late-fields"
    UNDECODED_FIELDS = "undecoded-fields"
    UNSCALED_DECIMALS = "unscaled-decimals"
    NARROWED_NUMBERS = "narrowed-numbers"


@dataclass(frozen=True, slots=True)
class About:
    """What a kind means.

    Attributes:
        what: a sentence: what is left out, or changed.
        hint: what to do where that is wrong; empty: nothing.
        warns: whether it may be data: it is logged at warning by daemon and client. Else it is only counted.
    """

    what: str
    hint: str = ""
    warns: bool = True


ABOUT: Final[Mapping[NoticeKind, About]] = {
    NoticeKind.HIDDEN_SHARDS: About(
        "objects below a folder or name that begins with . or _ are not read, though they look like data",
        "rename them, or name their folder in the URL, if they belong to the dataset",
    ),
    NoticeKind.HIDDEN_FILES: About("files whose names begin with . or _ are not read", warns=False),
    NoticeKind.SIDE_FILES: About("notes, checksums, lists and metadata beside the data are not read", warns=False),
    NoticeKind.TABLES_BESIDE_TARS: About("tables beside tars of the same name are not read", warns=False),
    NoticeKind.TABLES_BESIDE_SAMPLES: About("tables beside samples are not read as samples", warns=False),
    NoticeKind.LONE_COMPANIONS: About(
        "objects without an image, sound, video or array of the same name are not read",
        "name their folder in a URL of its own if they are samples",
    ),
    NoticeKind.SPLITS_TOGETHER: About(
        "shards of validation or test splits, by their names, are read together with those of training",
        "name the folder, or the beginning of the names, of one split in the URL: s3://bucket/set/train",
    ),
    NoticeKind.UNUSED_SIDECARS: About(
        "files of sample counts beside the data are not used",
        "correct or remove them, or run feedd index, so that steps are known in advance",
    ),
    NoticeKind.UNUSED_COUNTS: About(
        "sample counts beside the data are not used because they are of other objects or contradict each other",
        "run feedd index again, or correct or remove the files that they are from",
    ),
    NoticeKind.CUT_TAILS: About(
        "files of tokens end behind their last whole window, and those tokens are in no sample",
        '"last": "pad" in the recipe fills the last window',
        warns=False,
    ),
    NoticeKind.SHORT_FILES: About(
        "files of tokens are shorter than a window, and none of their tokens is in a sample",
        'ask for fewer tokens, or for "last": "pad" in the recipe',
    ),
    NoticeKind.UNREAD_COLUMNS: About(
        "columns, arrays and members of tars that feedd cannot read are in no batch",
        "write them as numbers, text, bytes or lists of numbers, or name the fields= you need to be rid of this",
    ),
    NoticeKind.PICKLED_COLUMNS: About(
        "columns that hold Python pickles are in no batch",
        'name them in fields= as "bytes" to unpickle them yourself',
    ),
    NoticeKind.RESERVED_NAMES: About(
        "fields whose names are reserved are in no batch",
        "rename them, or read them under another name: fields={'NAME': {'decode': ..., 'from': 'THEIRS'}}",
    ),
    NoticeKind.LATE_FIELDS: About(
        "fields that only later shards have are in no batch because the first shard tells which fields there are",
        "name the fields you need in fields=",
    ),
    NoticeKind.UNDECODED_FIELDS: About(
        "fields come as bytes because the library that decodes them is not installed where the daemon runs",
        "install it, or name the fields in fields= as bytes",
    ),
    NoticeKind.UNSCALED_DECIMALS: About(
        "decimals come as whole numbers, without their point: 12.34 is 1234",
        "divide by the power of ten of their type, or write the columns as float64",
    ),
    NoticeKind.NARROWED_NUMBERS: About(
        "columns of float64 are read as float32 because no fields are named",
        'fields={"NAME": "float:float64"} keeps all bits, and "float" says that 32 will do',
    ),
    NoticeKind.UNKNOWN_OBJECTS: About(
        "objects beside samples are not read because their names tell no format of samples or shards",
        "name them in a URL of their own, with their format before it, if they are data",
    ),
}


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of one kind there is.

    Attributes:
        count: of objects, of sample counts, or of columns.
        size_bytes: of the objects; 0 of columns.
        examples: names of the first of them.
    """

    count: int = 0
    size_bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, other: Amount) -> Amount:
        """Return both."""
        examples = (self.examples + other.examples)[:EXAMPLES_MAX]
        return Amount(self.count + other.count, self.size_bytes + other.size_bytes, examples)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a user is told when a dataset is opened."""

    kind: NoticeKind
    amount: Amount

    @property
    def warns(self) -> bool:
        """Whether it is logged at warning."""
        return ABOUT[self.kind].warns

    @property
    def text(self) -> str:
        """One line, of at most ``TEXT_CHARS_MAX`` characters."""
        about, amount = ABOUT[self.kind], self.amount
        names = ", ".join(map(_shown, amount.examples))
        more = amount.count - len(amount.examples)
        listed = f"{names} and {more} more" if names and more > 0 else names
        size = f", {format_size(amount.size_bytes)}" if amount.size_bytes else ""
        said = f"{about.what}: {amount.count}{size}{f' ({listed})' if listed else ''}"
        return (f"{said}; {about.hint}" if about.hint else said)[:TEXT_CHARS_MAX]


def notices_of(amounts: Mapping[NoticeKind, Amount]) -> tuple[Notice, ...]:
    """Return the notices of what there is, those that warn first."""
    found = [Notice(kind, amount) for kind, amount in amounts.items() if amount.count]
    return tuple(sorted(found, key=lambda one: (not one.warns, one.kind.value)))[:NOTICES_MAX]


def summed(every: Iterable[Mapping[NoticeKind, Amount]]) -> dict[NoticeKind, Amount]:
    """Return the amounts of several together."""
    found: dict[NoticeKind, Amount] = {}
    for one in every:
        for kind, amount in one.items():
            if amount.count:
                found[kind] = found.get(kind, Amount()).plus(amount)
    return found


def _shown(name: str) -> str:
    """Return a name in a line: as printable text, its middle left out where it is long."""
    text = "".join(char if char.isprintable() else "?" for char in name)
    return text if len(text) <= _EXAMPLE_CHARS_MAX else f"{text[: _EXAMPLE_CHARS_MAX - 40]}...{text[-37:]}"
