"""The frozen source of a pack: which versions of which objects go into which shard.

It is written once, beside the shards, as ``_feedd_pack.plan``. All parts of a pack read the same file, so that they
agree, however often the source changes. The file is little-endian: magic ``feeddpln``, u32 version, u32 length of a
head in JSON, the head, and the columns, compressed by zlib. The columns are those of ``dataset.packs.Members``, in the
order of the output, and the first sample of each shard.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from feedd.dataset.object_names import split_name
from feedd.dataset.packs import Members
from feedd.errors import BadRequest
from feedd.pack.pack_options import PackOptions
from feedd.pack.packed_sample import LABEL, Fields, PackedSample, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from feedd.pack.packed_sample import Piece
    from feedd.values import ObjectRef

_MAGIC: Final = b"feeddpln"
_VERSION: Final = 1
_START: Final = struct.Struct("<8sII")
_LEVEL: Final = 1  # etags do not compress, and keys do at any level


class _Head(msgspec.Struct):
    options: dict[str, Any]
    root: str
    base: str
    classes: list[str]
    fields: dict[str, int]
    versions: dict[str, str]
    samples: int
    lengths: list[int]


@dataclass(frozen=True)
class FrozenSource:
    """The samples of a pack, in the order of its output.

    Attributes:
        options: what the user asked for; ``labels`` is decided.
        members: all objects.
        cuts: int64[shards + 1], the first sample of each shard, and the number of samples.
        classes: names of the folders, in the order of their class numbers; empty: samples get no label.
        fields: extensions of all samples, the label's included.
        versions: versions of the libraries that decide the bytes of the shards.
        digest: SHA-256 of the file, in hexadecimal.
    """

    options: PackOptions
    members: Members
    cuts: NDArray[np.int64]
    classes: tuple[str, ...]
    fields: Fields
    versions: Mapping[str, str]
    digest: str = ""

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    @property
    def source_bytes(self) -> int:
        """Bytes of all objects."""
        return int(self.members.sizes.sum())

    @property
    def largest_bytes(self) -> int:
        """Bytes of the objects of the largest shard, at least 1."""
        firsts = self._firsts[self.cuts[:-1]]
        return max(1, int(np.add.reduceat(self.members.sizes, firsts).max()))

    def samples_in(self, shard: int) -> int:
        """Return the number of samples of a shard."""
        return int(self.cuts[shard + 1] - self.cuts[shard])

    def refs(self, shard: int) -> list[ObjectRef]:
        """Return the objects of a shard."""
        return [self.members.ref(number) for number in self._span(shard)]

    def samples(self, shard: int, values: Iterable[Piece]) -> Iterator[PackedSample]:
        """Yield the samples of a shard.

        Args:
            shard: number of the shard.
            values: the bytes of its objects, in order. They are taken as the samples are.
        """
        span, base = self._span(shard), len(self.members.base)
        found: PackedSample | None = None
        last = -1
        for number, value, sample in zip(
            span, values, self.members.sample[span.start : span.stop].tolist(), strict=True
        ):
            name = self.members.key(number)[base:]
            stem, extension = split_name(name)
            if found is None or sample != last:
                if found is not None:
                    yield self._labelled(found)
                found, last = PackedSample(stem, []), sample
            found.parts.append(Part(extension, name, value))
        assert found is not None, "every shard has samples"
        yield self._labelled(found)

    def _labelled(self, sample: PackedSample) -> PackedSample:
        """Return a sample with the number of its class, if folders are classes."""
        if self.classes:
            label = str(self._numbers[sample.key.partition("/")[0]]).encode()
            sample.parts.append(Part(LABEL, f"{sample.key}.{LABEL}", label))
        return sample

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """The first object of each sample, and the number of objects."""
        return np.append(np.flatnonzero(np.diff(self.members.sample, prepend=-1)), len(self.members.sample))

    def _span(self, shard: int) -> range:
        low, high = self.cuts[shard : shard + 2]
        return range(int(self._firsts[low]), int(self._firsts[high]))

    def render(self) -> bytes:
        """Return the content of the file."""
        members = self.members
        columns = [
            np.ascontiguousarray(column, "<i8").tobytes()
            for column in (self.cuts, members.sizes, members.key_ends, members.tag_ends, members.sample)
        ]
        columns += [members.keys, members.tags]
        head = msgspec.json.encode(
            _Head(
                asdict(self.options),
                members.root,
                members.base,
                list(self.classes),
                dict(self.fields.counts),
                dict(self.versions),
                self.fields.sample_count,
                list(map(len, columns)),
            )
        )
        packed = zlib.compress(b"".join(columns), _LEVEL)
        return b"".join((_START.pack(_MAGIC, _VERSION, len(head)), head, packed))


def parse(data: bytes, url: str) -> FrozenSource:
    """Return the frozen source that a file holds.

    Args:
        data: the whole file.
        url: URL of the file, for errors.

    Raises:
        BadRequest: the file is not a plan of this version.
    """
    try:
        magic, version, size = _START.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"{magic!r} of version {version}")  # noqa: TRY301 - one message for all that is wrong
        head = msgspec.json.decode(data[_START.size : _START.size + size], type=_Head)
        columns = zlib.decompress(data[_START.size + size :])
        ends = list(itertools.accumulate(head.lengths))
        pieces = [columns[low:high] for low, high in itertools.pairwise([0, *ends])]
        cuts, sizes, key_ends, tag_ends, sample = (np.frombuffer(one, "<i8").astype(np.int64) for one in pieces[:5])
        options = PackOptions(**head.options)
    except (ValueError, TypeError, struct.error, zlib.error, msgspec.MsgspecError) as error:
        raise BadRequest(
            f"expected a plan of feedd pack, version {_VERSION}, got {error}",
            object=url,
            hint="name another destination, or remove this file and all shards beside it",
            stage="pack",
        ) from error
    return FrozenSource(
        options,
        Members(head.root, head.base, pieces[5], key_ends, sizes, pieces[6], tag_ends, sample),
        cuts,
        tuple(head.classes),
        Fields(head.fields, head.samples),
        head.versions,
        hashlib.sha256(data).hexdigest(),
    )
