"""Notices about data that is left out or changed: the table of kinds, and the notices in the answer to Open.

Every place that leaves out or changes data has a kind here. A kind has a text, a level, a label of the metric, and a
row in ``docs/guides/bad-samples.md``; a test keeps them consistent.
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
OBJECTS_EVENT: Final = "objects are skipped"
"""Log event of a listing that leaves out objects. Commands that print notices drop this event from their log."""
SIDECARS_EVENT: Final = "sample counts beside the data are skipped"
"""Log event of a listing that leaves out sidecar files with sample counts."""


class NoticeKind(enum.Enum):
    """Kinds of notices, by their names on the wire, in ``stats()`` and in the metric's label."""

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
    EMPTY_OBJECTS = "empty-objects"
    UNREAD_COLUMNS = "unread-columns"
    PICKLED_COLUMNS = "pickled-columns"
    RESERVED_NAMES = "reserved-names"
    LATE_FIELDS = "late-fields"
    UNDECODED_FIELDS = "undecoded-fields"
    UNSCALED_DECIMALS = "unscaled-decimals"
    NARROWED_NUMBERS = "narrowed-numbers"


@dataclass(frozen=True, slots=True)
class About:
    """Meaning of a kind.

    Attributes:
        what: a sentence that says what is left out or changed.
        hint: what to do if that is wrong; empty: nothing.
        warns: the objects may be data, so daemon and client log a warning. Otherwise they are only counted.
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
        "name their folder in a separate URL if they are samples",
    ),
    NoticeKind.SPLITS_TOGETHER: About(
        "shards of validation or test splits, by their names, are read together with training shards",
        "name the folder, or the start of the names, of one split in the URL: s3://bucket/set/train",
    ),
    NoticeKind.UNUSED_SIDECARS: About(
        "files with sample counts beside the data are not used",
        "correct or remove them, or run feedd index, so that steps are known in advance",
    ),
    NoticeKind.UNUSED_COUNTS: About(
        "sample counts beside the data are not used because they describe other objects or contradict each other",
        "run feedd index again, or correct or remove the files that contain them",
    ),
    NoticeKind.CUT_TAILS: About(
        "token files have tokens after their last whole window, and these tokens are in no sample",
        '"last": "pad" in the recipe fills the last window',
        warns=False,
    ),
    NoticeKind.SHORT_FILES: About(
        "token files are shorter than a window, and none of their tokens is in a sample",
        'use fewer tokens, or "last": "pad" in the recipe',
    ),
    NoticeKind.EMPTY_OBJECTS: About(
        "objects have no bytes: shards among them have no samples, and pictures, sounds and arrays are bad samples",
        "write them again if their upload broke off, or remove them",
    ),
    NoticeKind.UNREAD_COLUMNS: About(
        "columns, arrays and tar members that feedd cannot read are in no batch",
        "write them as numbers, text, bytes or lists of numbers, or name the fields you need in fields=",
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
        "fields that only later shards have are in no batch because the first shard defines the fields",
        "name the fields you need in fields=",
    ),
    NoticeKind.UNDECODED_FIELDS: About(
        "fields are bytes because the library that decodes them is not installed where the daemon runs",
        "install it, or name the fields in fields= as bytes",
    ),
    NoticeKind.UNSCALED_DECIMALS: About(
        "decimals are read as whole numbers, without their decimal point: 12.34 is 1234",
        "divide by the power of ten of their type, or write the columns as float64",
    ),
    NoticeKind.NARROWED_NUMBERS: About(
        "columns of float64 are read as float32 because no fields are named",
        'fields={"NAME": "float:float64"} keeps all bits; "float" confirms float32',
    ),
    NoticeKind.UNKNOWN_OBJECTS: About(
        "objects beside samples are not read because their names match no format of samples or shards",
        "name them in a separate URL, with their format before it, if they are data",
    ),
}


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount of data of one kind.

    Attributes:
        count: number of objects, sample counts or columns.
        size_bytes: bytes of the objects; 0 for columns.
        examples: names of the first ones.
    """

    count: int = 0
    size_bytes: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, other: Amount) -> Amount:
        """Return the sum of two amounts."""
        examples = (self.examples + other.examples)[:EXAMPLES_MAX]
        return Amount(self.count + other.count, self.size_bytes + other.size_bytes, examples)

    @property
    def text(self) -> str:
        """Count, size and first names."""
        names = ", ".join(map(_shown, self.examples))
        more = self.count - len(self.examples)
        listed = f"{names} and {more} more" if names and more > 0 else names
        size = f", {format_size(self.size_bytes)}" if self.size_bytes else ""
        return f"{self.count}{size}{f' ({listed})' if listed else ''}"


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice for the user at the opening of a dataset."""

    kind: NoticeKind
    amount: Amount

    @property
    def warns(self) -> bool:
        """Whether the notice is logged as a warning."""
        return ABOUT[self.kind].warns

    @property
    def text(self) -> str:
        """The notice as one line, of at most ``TEXT_CHARS_MAX`` characters."""
        about = ABOUT[self.kind]
        said = f"{about.what}: {self.amount.text}"
        return (f"{said}; {about.hint}" if about.hint else said)[:TEXT_CHARS_MAX]


def notices_of(amounts: Mapping[NoticeKind, Amount]) -> tuple[Notice, ...]:
    """Return the notices of all nonzero amounts, warnings first."""
    found = [Notice(kind, amount) for kind, amount in amounts.items() if amount.count]
    return tuple(sorted(found, key=lambda one: (not one.warns, one.kind.value)))[:NOTICES_MAX]


def summed(every: Iterable[Mapping[NoticeKind, Amount]]) -> dict[NoticeKind, Amount]:
    """Return the sum of several tables of amounts."""
    found: dict[NoticeKind, Amount] = {}
    for one in every:
        for kind, amount in one.items():
            if amount.count:
                found[kind] = found.get(kind, Amount()).plus(amount)
    return found


def _shown(name: str) -> str:
    """Return a name as printable text for a line; the middle of a long name is left out."""
    text = "".join(char if char.isprintable() else "?" for char in name)
    return text if len(text) <= _EXAMPLE_CHARS_MAX else f"{text[: _EXAMPLE_CHARS_MAX - 40]}...{text[-37:]}"
