"""From pages of a listing to shards and packs. Pure; a microsecond or two for each object.

Objects that are called alike but for their extension are one sample (``a.jpg``, ``a.json``, ``a.txt``), as in a tar.
Among samples, what is no shard and no part of one is left out: tables about them, notes, files that begin with a dot.
"""

from __future__ import annotations

import itertools
import zlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedd.plan.objects.borders import borders
from feedd.plan.objects.kinds import COMPANION, LINES, PRIMARY, SHARD, kind_of, split_name
from feedd.plan.objects.packs import Members, Packs, packed_tag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from feedd.values import ObjectRef

_MEMBERS = frozenset({PRIMARY, COMPANION, LINES})


@dataclass(frozen=True, slots=True)
class Grouped:
    """What a URL names.

    Attributes:
        refs: shards, and packs among them, in order.
        packs: None: there are none.
        left_out: objects that are no data, of which ``example`` is the first.
        example: its key; empty: there is none.
    """

    refs: tuple[ObjectRef, ...]
    packs: Packs | None = None
    left_out: int = 0
    example: str = ""


class Gathering:
    """Takes the pages of one URL's listing.

    Args:
        base: what keys are relative to; all begin with it.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._others: list[ObjectRef] = []
        self._places = array("q")  # so many objects of samples came before each of the others
        self._keys, self._key_ends = bytearray(), array("q")
        self._tags, self._tag_ends = bytearray(), array("q")
        self._sizes, self._firsts = array("q"), array("q")
        self._kinds, self._marks = bytearray(), array("I")
        self._open: list[tuple[str, int, set[str]]] = []  # stems that later objects may still be of
        self._root = ""

    def add(self, page: Iterable[ObjectRef], *, named: bool = False) -> None:
        """Take objects, in the order of the dataset.

        Args:
            page: of them.
            named: they are shards, whatever they are called.
        """
        for ref in page:
            stem, extension = split_name(ref.key)
            kind = SHARD if named else kind_of(stem, extension)
            if kind not in _MEMBERS:
                self._others.append(ref)
                self._places.append(len(self._sizes))
                continue
            self._member(ref, stem, extension, kind)

    def _member(self, ref: ObjectRef, stem: str, extension: str, kind: int) -> None:
        if ref.root != self._root:
            assert not self._root, "a URL names objects of one store"
            self._root = ref.root
        key = ref.key[len(self._base) :].encode("utf-8", "surrogatepass")
        self._firsts.append(self._first(stem, extension))
        self._marks.append(zlib.crc32(key))
        self._kinds.append(kind)
        self._sizes.append(ref.size_bytes)
        self._keys += key
        self._key_ends.append(len(self._keys))
        self._tags += packed_tag(ref.etag)
        self._tag_ends.append(len(self._tags))

    def _first(self, stem: str, extension: str) -> int:
        """Return the first object of the sample that this one belongs to: itself, where it is the first.

        In order of keys, between two objects of one stem there are only such whose stems begin with it and a dot.
        """
        number, stack = len(self._sizes), self._open
        while stack and stack[-1][0] != stem and not stem.startswith(stack[-1][0] + "."):
            stack.pop()
        if stack and stack[-1][0] == stem and extension not in stack[-1][2]:
            stack[-1][2].add(extension)
            return stack[-1][1]
        if stack and stack[-1][0] == stem:
            stack.pop()
        stack.append((stem, number, {extension}))
        return number

    def grouped(self) -> Grouped:
        """Return what has come, grouped; microseconds per pack. Called once, when all has come."""
        if not self._sizes:
            return Grouped(tuple(self._others))
        first = np.frombuffer(self._firsts, np.int64)
        # an object may come later than its sample's others, where a longer stem lies between
        order = np.argsort(first, kind="stable") if (np.diff(first) < 0).any() else np.arange(len(first))
        begins = np.flatnonzero(np.diff(first[order], prepend=-1))  # of samples, in ``order``
        counts = np.diff(begins, append=len(order))
        kinds = np.frombuffer(self._kinds, np.uint8)[order]
        primary = np.logical_or.reduceat(kinds == PRIMARY, begins)
        if not primary.any():
            if self._others or (counts.max() == 1 and (kinds == LINES).any()):
                return Grouped(self._as_shards())
            primary[:] = True  # nothing but text in several files to a sample, or JSON
        return self._packed(order, np.repeat(primary, counts))

    def _as_shards(self) -> tuple[ObjectRef, ...]:
        """Return all objects as they came."""
        members = self._members(np.arange(len(self._sizes)))
        places = np.array(self._places, np.int64)
        found: list[ObjectRef] = []
        at = 0
        for ref, place in zip(self._others, places.tolist(), strict=True):
            found += [members.ref(number) for number in range(at, place)]
            found.append(ref)
            at = place
        return (*found, *(members.ref(number) for number in range(at, len(self._sizes))))

    def _packed(self, order: NDArray[np.int64], kept: NDArray[np.bool_]) -> Grouped:
        """Cut the objects that are kept into packs, and put shards between them where they were.

        Args:
            order: of all objects, those of a sample one after another.
            kept: whether each, in that order, is of a sample.
        """
        first = np.frombuffer(self._firsts, np.int64)[order[kept]]
        members = self._members(order[kept])
        begins = np.flatnonzero(np.diff(first, prepend=-1))
        shards = [
            (ref, place)
            for ref, place in zip(self._others, self._places, strict=True)
            if kind_of(*split_name(ref.key)) == SHARD
        ]
        places = np.searchsorted(first[begins], [place for _, place in shards])  # in samples
        edges = np.unique(np.concatenate(([0], places, [len(begins)])))
        cuts = [self._borders(members, begins, order[kept], low, high) for low, high in itertools.pairwise(edges)]
        firsts = np.concatenate([*cuts, [len(begins)]])
        packs = Packs.of(members, np.append(begins, len(first))[firsts])
        refs: list[ObjectRef] = []
        at = 0
        for (ref, _), place in zip(shards, places.tolist(), strict=True):
            end = int(np.searchsorted(firsts[:-1], place))
            refs += packs.refs[at:end]
            refs.append(ref)
            at = end
        lost = len(order) - len(first) + len(self._others) - len(shards)
        return Grouped((*refs, *packs.refs[at:]), packs, lost, self._example(order, kept) if lost else "")

    def _borders(
        self, members: Members, begins: NDArray[np.int64], numbers: NDArray[np.int64], low: int, high: int
    ) -> NDArray[np.int64]:
        """Return the samples at which packs begin, of those between two shards."""
        ends = np.append(begins, len(numbers))
        counts = np.diff(ends[low : high + 1])
        span = slice(ends[low], ends[high])
        sizes = np.add.reduceat(members.sizes[span], begins[low:high] - ends[low])
        marks = np.frombuffer(self._marks, np.uint32)[numbers[begins[low:high]]]
        return borders(sizes, counts, marks)[:-1] + low

    def _members(self, numbers: NDArray[np.int64]) -> Members:
        """Return columns over some objects, in that order."""
        sizes = np.frombuffer(self._sizes, np.int64)
        key_ends, tag_ends = np.frombuffer(self._key_ends, np.int64), np.frombuffer(self._tag_ends, np.int64)
        first = np.frombuffer(self._firsts, np.int64)[numbers]
        sample = np.cumsum(np.diff(first, prepend=first[:1]) != 0)
        if len(numbers) == len(sizes) and (np.diff(numbers) > 0).all():
            columns = (bytes(self._keys), key_ends, sizes, bytes(self._tags), tag_ends)
        else:
            columns = (*_taken(self._keys, key_ends, numbers), sizes[numbers], *_taken(self._tags, tag_ends, numbers))
        return Members(self._root, self._base, *columns, sample)

    def _example(self, order: NDArray[np.int64], kept: NDArray[np.bool_]) -> str:
        """Return the key of an object that is left out."""
        if not kept.all():
            return self._members(order[~kept][:1]).key(0)
        return next(ref.key for ref in self._others if kind_of(*split_name(ref.key)) != SHARD)


def _taken(blob: bytearray, ends: NDArray[np.int64], numbers: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Return some texts of many, one after another, and where each ends."""
    starts = np.concatenate(([0], ends[:-1]))[numbers].tolist()
    view = memoryview(blob)
    pieces = [view[start:end] for start, end in zip(starts, ends[numbers].tolist(), strict=True)]
    return b"".join(pieces), np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
