"""Sample counts that other tools leave beside the data. They are claims, believed as far as they can be checked.

| file | written for | what it claims of each shard |
|---|---|---|
| ``index.json`` (version 2) | MosaicML streaming | bytes and samples, of the shard as it is and compressed; columns |
| ``index.json`` (chunks) | LitData | bytes and samples of each chunk, and what its items are |
| ``shardindex.json`` | webdataset, by ``widsindex`` | bytes and samples |
| ``sizes.json`` | open_clip, open_flamingo | samples, by the shard's name |
| ``_info.json`` | timm | samples, by the shard's name, per split |

None knows an ETag. Where bytes are claimed, a shard of other bytes is not the one that was counted. Where none are, the
file must name exactly the shards that lie beside it: one that was left there while shards came and went does not. What
is wrong all the same shows when the shard is read (``Listing.learn``). ``__len__`` (open_clip) has only the sum of all
shards, which tells nothing of any; it is just no shard.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from feedd.plan import litdata
from feedd.plan.counts import SAMPLES_MAX, decoded, each, folder_of, is_index

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from feedd.values import ObjectRef

CLAIMS_BYTES_MAX = 256 << 20


class Claim(NamedTuple):
    """What a file says of one shard.

    Attributes:
        key: below the file's folder.
        size_bytes: None: it does not say.
        format: how the shard is to be read (see ``decode.formats.registry``); empty: it does not say.
    """

    key: str
    size_bytes: int | None
    sample_count: int
    format: str = ""


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
        """Return the format with the columns that the shard must have; empty: none are named."""
        if self.format != "mds" or not self.column_names:
            return ""
        columns = {
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }
        return f"mds:{msgspec.json.encode(columns).decode()}"


class _Mds(msgspec.Struct):
    version: int
    shards: list[msgspec.Raw]


class _WidsShard(msgspec.Struct):
    url: str
    nsamples: int
    filesize: int


class _Wids(msgspec.Struct):
    wids_version: int
    shardlist: list[msgspec.Raw]


class _Split(msgspec.Struct):
    filenames: list[str]
    shard_lengths: list[int]


class _Info(msgspec.Struct):
    splits: dict[str, _Split]


def _index(data: bytes) -> Iterator[Claim]:
    if "chunks" not in decoded(data, dict[str, msgspec.Raw]):
        yield from _mosaic(data)
        return
    claims, reader = litdata.chunks(data)
    for key, size_bytes, count in claims:
        yield Claim(key, size_bytes, count, reader)


def _mosaic(data: bytes) -> Iterator[Claim]:
    file = decoded(data, _Mds)
    if file.version != 2:
        raise ValueError(f"expected an index of version 2, got {file.version}")
    readers: dict[str, str] = {}  # one text for all shards that have it
    for shard in each(file.shards, _MdsShard):
        reader = shard.reader()
        reader = readers.setdefault(reader, reader)
        if shard.raw_data is not None:
            yield Claim(shard.raw_data.basename, shard.raw_data.bytes, shard.samples, reader)
        if shard.zip_data is not None:
            yield Claim(shard.zip_data.basename, shard.zip_data.bytes, shard.samples)


def _wids(data: bytes) -> Iterator[Claim]:
    file = decoded(data, _Wids)
    if file.wids_version != 1:
        raise ValueError(f"expected an index of version 1, got {file.wids_version}")
    for shard in each(
        file.shardlist, _WidsShard
    ):  # it may name them as they lay where it was made: looked for here by their last name
        yield Claim(shard.url.rpartition("/")[2], shard.filesize, shard.nsamples)


def _sizes(data: bytes) -> Iterator[Claim]:
    # some write numbers as text, and those who read it take them
    for name, count in decoded(data, dict[str, int], strict=False).items():
        yield Claim(name, None, count)


def _timm(data: bytes) -> Iterator[Claim]:
    for split in decoded(data, _Info).splits.values():
        if len(split.filenames) != len(split.shard_lengths):
            raise ValueError(f"expected {len(split.filenames)} shard_lengths, got {len(split.shard_lengths)}")
        for name, count in zip(split.filenames, split.shard_lengths, strict=True):
            yield Claim(name, None, count)


_READERS: Final[Mapping[str, Callable[[bytes], Iterator[Claim]]]] = {
    "index.json": _index,
    "shardindex.json": _wids,
    "sizes.json": _sizes,
    "_info.json": _timm,
}
_ONLY_SUMS: Final = "__len__"
_ABOUT_RECORDS: Final = (".idx", ".lst")  # where MXNet's records lie, and what im2rec was given to pack


def is_claim(key: str) -> bool:
    """Whether an object's name is that of a file this module reads."""
    return key.rpartition("/")[2] in _READERS


def is_beside(key: str) -> bool:
    """Whether an object is about samples, feedd's own index or another's, and so no shard."""
    return is_index(key) or is_claim(key) or key.rpartition("/")[2] == _ONLY_SUMS or key.endswith(_ABOUT_RECORDS)


def parse_claims(key: str, data: bytes) -> list[Claim]:
    """Return what a file says; nothing in it is trusted.

    Args:
        key: of the file: its name tells what it is.
        data: all of it.

    Raises:
        ValueError: it is no such file, or says what cannot be; one line.
    """
    claims = list(_READERS[key.rpartition("/")[2]](data))
    said: dict[tuple[str, int | None], int] = {}
    for claim in claims:
        if not 0 <= claim.sample_count < SAMPLES_MAX:
            raise ValueError(f"expected a count of samples, got {claim.sample_count} for {claim.key!r:.80}")
        if said.setdefault(claim[:2], claim.sample_count) != claim.sample_count:
            raise ValueError(f"expected one count for {claim.key!r:.80}, got two")
    return claims


class Surroundings:
    """The dataset's objects by where they lie. Made once for all files; a microsecond or two per object."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs = refs
        self._at: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._folders: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for number, ref in enumerate(refs):
            self._at[ref.root, ref.key].append(number)  # the same object may be listed twice
            self._folders[ref.root, folder_of(ref.key)].add(ref.key)

    def believed(self, file: ObjectRef, claims: Sequence[Claim]) -> dict[int, int]:
        """Return the counts of the shards that can be what a file claims they are, by their index.

        Raises:
            ValueError: none is, or it says no bytes and is not of the shards that lie beside it.
        """
        folder = folder_of(file.key)
        blind = {folder + claim.key for claim in claims if claim.size_bytes is None}
        if blind:
            self._check_names(file.root, blind)
        found: dict[int, int] = {}
        for key, size_bytes, count, _ in claims:
            for number in self._at.get((file.root, folder + key), ()):
                actual_bytes = self._refs[number].size_bytes
                if size_bytes is None and count and count >= actual_bytes:
                    raise ValueError(f"expected counts of samples, got {count} for the {actual_bytes} bytes of {key!r}")
                if size_bytes in {None, actual_bytes}:
                    found[number] = count
        if not found:
            raise ValueError(f"expected objects that are there as it says, got none of {len(claims)}")
        return found

    def formats(self, file: ObjectRef, claims: Sequence[Claim], believed: Collection[int]) -> dict[int, str]:
        """Return how shards are to be read as far as a file says, by their index.

        What LitData says holds for chunks of other bytes, too: without it they cannot be read at all.
        """
        folder = folder_of(file.key)
        return {
            number: claim.format
            for claim in claims
            if claim.format
            for number in self._at.get((file.root, folder + claim.key), ())
            if number in believed or claim.format.startswith("litdata:")
        }

    def _check_names(self, root: str, named: set[str]) -> None:
        folders = {folder_of(key) for key in named}
        there: set[str] = set().union(*(self._folders.get((root, folder), ()) for folder in folders))
        missing, gone = there - named, named - there
        if missing:
            raise ValueError(f"expected counts of all objects beside it, got none of {len(missing)}: {min(missing)!r}")
        if gone:
            raise ValueError(f"expected counts of objects that are there, got {len(gone)} that are not: {min(gone)!r}")
