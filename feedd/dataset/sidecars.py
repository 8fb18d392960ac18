"""Sample counts that other tools leave beside the data. They are claims, used as far as they can be checked.

| file | written for | what it claims of each shard |
|---|---|---|
| ``index.json`` (version 2) | MosaicML streaming | bytes and samples, of the plain and the compressed shard; columns |
| ``index.json`` (chunks) | LitData | bytes and samples of each chunk, and the types of its items |
| ``shardindex.json`` | webdataset, by ``widsindex`` | bytes and samples |
| ``sizes.json`` | open_clip, open_flamingo | samples, by the shard's name |
| ``_info.json`` | timm | samples, by the shard's name, per split |

None of them has an ETag. If a file claims bytes, a shard of another size is not the counted one. If a file claims no
bytes, it must name exactly the shards beside it, which an outdated file does not. Any remaining error shows when the
shard is read (``Listing.learn``). ``__len__`` (open_clip) has only the sum of all shards, so no count is taken from it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from feedd.dataset import litdata_index as litdata
from feedd.dataset.index_file import SAMPLES_MAX, folder_of, is_index, is_manifest
from feedd.dataset.json_pieces import elements, find, items, members, value
from feedd.notices import EXAMPLES_MAX, Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from feedd.dataset.index_file import Row
    from feedd.dataset.json_pieces import Octets
    from feedd.values import ObjectRef

CLAIMS_BYTES_MAX = 256 << 20
_READERS_KEPT: Final = 1024


class SidecarCount(NamedTuple):
    """A file's claim about one shard.

    Attributes:
        key: key relative to the file's folder.
        size_bytes: claimed bytes; None: not claimed.
        format: format of the shard (see ``formats.format_registry``); empty: not claimed.
        again: another claim about the same shard as before: compressed, or with its bytes counted in another way.
    """

    key: str
    size_bytes: int | None
    sample_count: int
    format: str = ""
    again: bool = False


class _Data(msgspec.Struct):
    basename: str
    bytes: int


class _MdsShard(msgspec.Struct):
    samples: int
    raw_data: _Data | None = None
    zip_data: _Data | None = None
    format: str = ""
    column_names: list[str] = []
    column_encodings: list[str] = []
    column_sizes: list[int | None] = []

    def reader(self) -> str:
        """Return the format with the columns that the shard must have; empty: no columns are named."""
        if self.format != "mds" or not self.column_names:
            return ""
        columns = {
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }
        return f"mds:{msgspec.json.encode(columns).decode()}"


class _WidsShard(msgspec.Struct):
    url: str
    nsamples: int
    filesize: int


def _index(data: Octets) -> Iterator[SidecarCount]:
    if "chunks" not in (name for name, _ in members(data)):
        yield from _mosaic(data)
        return
    before = None
    for key, size_bytes, count, reader in litdata.chunks(data):
        yield SidecarCount(key, size_bytes, count, reader, again=key == before)
        before = key


def _mosaic(data: Octets) -> Iterator[SidecarCount]:
    places = find(data, ("version", "shards"))
    version = value(data, places["version"], int)
    if version != 2:
        raise ValueError(f"expected an index of version 2, got {version}")
    readers: dict[str, str] = {}  # one shared text for all shards with the same columns
    for shard in elements(data, places["shards"], _MdsShard):
        reader = shard.reader()
        if len(readers) < _READERS_KEPT:
            reader = readers.setdefault(reader, reader)
        if shard.raw_data is not None:
            yield SidecarCount(shard.raw_data.basename, shard.raw_data.bytes, shard.samples, reader)
        if shard.zip_data is not None:
            again = shard.raw_data is not None
            yield SidecarCount(shard.zip_data.basename, shard.zip_data.bytes, shard.samples, again=again)


def _wids(data: Octets) -> Iterator[SidecarCount]:
    places = find(data, ("wids_version", "shardlist"))
    version = value(data, places["wids_version"], int)
    if version != 1:
        raise ValueError(f"expected an index of version 1, got {version}")
    # The file may name shards by their paths where it was made, so only the last name is used.
    for shard in elements(data, places["shardlist"], _WidsShard):
        yield SidecarCount(shard.url.rpartition("/")[2], shard.filesize, shard.nsamples)


def _sizes(data: Octets) -> Iterator[SidecarCount]:
    # Some tools write numbers as text, and readers accept them.
    for name, count in items(data, int, strict=False):
        yield SidecarCount(name, None, count)


def _timm(data: Octets) -> Iterator[SidecarCount]:
    for _, split in members(data, find(data, ("splits",))["splits"]):
        columns = dict(members(data, split))
        if not columns.keys() >= {"filenames", "shard_lengths"}:
            raise ValueError("expected an index of splits with filenames and shard_lengths, got one without")
        names, counts = elements(data, columns["filenames"], str), elements(data, columns["shard_lengths"], int)
        for name, count in itertools.zip_longest(names, counts):
            if name is None or count is None:
                raise ValueError("expected as many shard_lengths as filenames, got others")
            yield SidecarCount(name, None, count)


_READERS: Final[Mapping[str, Callable[[Octets], Iterator[SidecarCount]]]] = {
    "index.json": _index,
    "shardindex.json": _wids,
    "sizes.json": _sizes,
    "_info.json": _timm,
}
_WITH_BYTES: Final = frozenset(("index.json", "shardindex.json"))
_WITH_FORMATS: Final = frozenset(("index.json",))
_ONLY_SUMS: Final = "__len__"
_ABOUT_RECORDS: Final = (".idx", ".lst")  # positions of MXNet's records, and the input list of im2rec


def is_foreign_sidecar(key: str) -> bool:
    """Whether an object's name is that of a file this module reads."""
    return key.rpartition("/")[2] in _READERS


def tells_bytes(key: str) -> bool:
    """Whether a file of this name claims the bytes of the counted shards."""
    return key.rpartition("/")[2] in _WITH_BYTES


def is_sidecar(key: str) -> bool:
    """Whether an object is a sidecar, feedd's own index or another tool's, and so no shard."""
    own = is_index(key) or is_manifest(key)
    return own or is_foreign_sidecar(key) or key.rpartition("/")[2] == _ONLY_SUMS or key.endswith(_ABOUT_RECORDS)


@dataclass(frozen=True, slots=True)
class ForeignCounts:
    """A file's claims about shards. Each iteration parses the text again, piece by piece, and keeps nothing of it.

    Attributes:
        key: key of the file, whose name tells the format.
        data: the whole file; its content is not trusted.
    """

    key: str
    data: Octets

    def __iter__(self) -> Iterator[SidecarCount]:
        """Yield the claim about each shard.

        Raises:
            ValueError: the file has another format, or impossible numbers; one line. Earlier claims must be discarded.
        """
        for claim in _READERS[self.key.rpartition("/")[2]](self.data):
            if not 0 <= claim.sample_count < SAMPLES_MAX:
                raise ValueError(f"expected a count of samples, got {claim.sample_count} for {claim.key!r:.80}")
            yield claim


@dataclass(slots=True)
class _Names:
    """Names without bytes that a file claims, compared with the objects beside the file."""

    seen: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    gone_count: int = 0
    first_gone: str = ""

    def gone(self, key: str) -> None:
        """Record a claimed object that does not exist."""
        self.gone_count += 1
        self.first_gone = min(self.first_gone or key, key)


class Unused:
    """Unused counts of a file: their number, and reasons for the first ones."""

    def __init__(self) -> None:
        self._count = 0
        self._examples: list[str] = []

    def add(self, key: str, why: str, *values: object) -> None:
        """Add an unused count; for the first ones, ``values`` are formatted into ``why``."""
        self._count += 1
        if len(self._examples) < EXAMPLES_MAX:
            self._examples.append(f"{key}: {why.format(*values)}")

    @property
    def amount(self) -> Amount:
        """The amount of all unused counts."""
        return Amount(self._count, 0, tuple(self._examples))


@dataclass(slots=True)
class _Shard:
    """Consecutive claims about one shard.

    Attributes:
        key: key of the first claim; empty: there is none yet.
        sizes: claimed and actual bytes of the first existing form; None: no form exists.
        fits: one of the claims is right.
    """

    key: str = ""
    sizes: tuple[int, int] | None = None
    fits: bool = False

    def close(self, unused: Unused) -> None:
        """Report a shard without a right claim."""
        if not self.key or self.fits:
            return
        if self.sizes is None:
            unused.add(self.key, "does not exist")
        else:
            unused.add(self.key, "counted as {} bytes, has {}", *self.sizes)


class Surroundings:
    """The dataset's objects by folder. Built once for all files; a microsecond or two per object."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs = refs
        self._at: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._folders: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for number, ref in enumerate(refs):
            self._at[ref.root, ref.key].append(number)  # the same object may be listed twice
            self._folders[ref.root, folder_of(ref.key)].add(ref.key)

    def clear(self) -> None:
        """Forget the objects one by one: freeing millions in one call would hold the interpreter lock for too long."""
        while self._at:
            self._at.popitem()
        while self._folders:
            _, keys = self._folders.popitem()
            while keys:
                keys.pop()

    def counted(self, file: ObjectRef, rows: Iterable[Row], unused: Unused | None = None) -> dict[int, int]:
        """Return the counts of the shards that have not changed since feedd's own index was written.

        Args:
            file: the index.
            rows: its rows. If two rows give different counts for one shard, neither is used.
            unused: takes the rows that are not used.
        """
        unused = unused or Unused()
        folder = folder_of(file.key)
        found: dict[int, int] = {}
        twice: dict[str, Sequence[int]] = {}
        for row in rows:
            key = folder + row.key
            numbers = self._at.get((file.root, key), ())
            wanted = row.size_bytes, row.etag
            fits = [n for n in numbers if (self._refs[n].size_bytes, self._refs[n].etag) == wanted]
            if fits:
                known = found.setdefault(fits[0], row.sample_count)
                if known != row.sample_count and key not in twice:
                    unused.add(key, "counted as {} samples and as {}", known, row.sample_count)
                    twice[key] = fits
                found.update(dict.fromkeys(fits, known))
            elif numbers:
                actual = self._refs[numbers[0]]
                why = "counted as {} bytes with ETag {}, has {} with ETag {}"
                unused.add(key, why, *wanted, actual.size_bytes, actual.etag)
            else:
                unused.add(key, "does not exist")
        for number in itertools.chain.from_iterable(twice.values()):
            del found[number]
        return found

    def believed(self, file: ObjectRef, claims: Iterable[SidecarCount], unused: Unused | None = None) -> dict[int, int]:
        """Return the counts of the shards that match a file's claims, by their index.

        Args:
            file: the file.
            claims: claims of the file.
            unused: takes the claims that are not used. Its content must be discarded if this call raises.

        Raises:
            ValueError: no claim matches, two counts differ, or a file without bytes does not name exactly the shards
                beside it.
        """
        unused = unused or Unused()
        folder = folder_of(file.key)
        found: dict[int, int] = {}
        names, shard = _Names(), _Shard()
        total = 0
        for key, size_bytes, count, _, again in claims:
            total += 1
            numbers = self._at.get((file.root, folder + key), ())
            if not again:
                shard.close(unused)
                shard = _Shard(folder + key)
            if size_bytes is None:
                self._note(names, file.root, folder + key)
            for number in numbers:
                actual_bytes = self._refs[number].size_bytes
                if size_bytes is None and count and count >= actual_bytes:
                    raise ValueError(f"expected counts of samples, got {count} for the {actual_bytes} bytes of {key!r}")
                if size_bytes not in {None, actual_bytes}:
                    shard.sizes = shard.sizes or (size_bytes or 0, actual_bytes)
                    continue
                shard.fits = True
                if found.setdefault(number, count) != count:
                    raise ValueError(f"expected one count for {key!r:.80}, got two")
        shard.close(unused)
        self._check(file.root, names)
        if not found:
            raise ValueError(f"expected existing objects of the claimed sizes, got none of {total}")
        return found

    def formats(self, file: ObjectRef, claims: Iterable[SidecarCount], believed: Collection[int]) -> dict[int, str]:
        """Return the formats of shards as far as a file claims them, by their index.

        LitData's claims also hold for chunks of other sizes, because the chunks cannot be read without them. A kind of
        file that claims no formats is not read again.
        """
        if file.key.rpartition("/")[2] not in _WITH_FORMATS:
            return {}
        folder = folder_of(file.key)
        return {
            number: claim.format
            for claim in claims
            if claim.format
            for number in self._at.get((file.root, folder + claim.key), ())
            if number in believed or claim.format.startswith("litdata:")
        }

    def _note(self, names: _Names, root: str, key: str) -> None:
        if (root, key) in self._at:
            names.seen.add(key)
        else:
            names.gone(key)
        if (root, folder_of(key)) in self._folders:
            names.folders.add(folder_of(key))

    def _check(self, root: str, names: _Names) -> None:
        missing_count, first = 0, ""
        for folder in names.folders:
            for key in self._folders[root, folder]:
                if key not in names.seen:
                    missing_count, first = missing_count + 1, min(first or key, key)
        if missing_count:
            raise ValueError(f"expected counts of all objects beside the file, got none for {missing_count}: {first!r}")
        if names.gone_count:
            gone = f"{names.gone_count} that do not exist: {names.first_gone!r}"
            raise ValueError(f"expected counts of existing objects, got {gone}")
