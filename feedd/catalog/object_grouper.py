"""Groups pages of a listing into shards and packs. Pure; a microsecond or two per object.

Objects with the same name except for the extension are one sample (``a.jpg``, ``a.json``, ``a.txt``), as in a tar.
Among samples, objects that are neither shards nor parts of samples are left out: tables about them, notes, hidden
files. Among shards, ``ignored_objects`` decides.
"""

from __future__ import annotations

import itertools
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.catalog.object_kinds import COMPANION, LINES, PRIMARY, SHARD, is_table, kind_of
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_borders import borders
from feedd.dataset.packs import Members, Packs, packed_tag, texts_at
from feedd.dataset.passed_over import amount_of
from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.catalog.ignored_objects import IgnoredKeys
    from feedd.values import ObjectRef

_MEMBERS = frozenset({PRIMARY, COMPANION, LINES})


@dataclass(frozen=True, slots=True)
class Grouped:
    """The content of a URL.

    Attributes:
        refs: shards and packs, in order.
        packs: the packs; None: there are none.
        left_out: number of ignored objects.
        examples: keys of the first ones.
        reasons: count and size by reason.
    """

    refs: tuple[ObjectRef, ...]
    packs: Packs | None = None
    left_out: int = 0
    examples: tuple[str, ...] = ()
    reasons: Mapping[NoticeKind, Amount] = field(default_factory=dict)


class ObjectGrouper:
    """Takes the pages of one URL's listing.

    Args:
        base: common prefix of all keys, to which keys are relative.
        shards: every object is a shard, whatever its name, because the user named the format.
        ignored: recognises ignored objects; None: the user named each object.
    """

    def __init__(self, base: str, *, shards: bool = False, ignored: IgnoredKeys | None = None) -> None:
        self._base = base
        self._shards = shards
        self._ignored = ignored
        self._others: list[ObjectRef] = []
        self._samples_before = array("q")  # for each of the others, the number of sample objects before it
        self._keys, self._key_ends = bytearray(), array("q")
        self._tags, self._tag_ends = bytearray(), array("q")
        self._sizes, self._firsts = array("q"), array("q")
        self._kinds, self._marks = bytearray(), array("I")
        self._open: list[tuple[str, int, set[str]]] = []  # stems to which later objects may still belong
        self._root = ""

    def add(self, page: Iterable[ObjectRef]) -> None:
        """Add objects, in the order of the dataset."""
        for ref in page:
            stem, extension = split_name(ref.key)
            kind = kind_of(stem, extension)
            if self._shards or kind not in _MEMBERS:
                self._others.append(ref)
                self._samples_before.append(len(self._sizes))
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
        """Return the first object of this object's sample, which may be the object itself.

        In key order, all stems between two objects of one stem begin with that stem and a dot.
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
        """Return the grouped objects; takes microseconds per pack. Called once, after all pages."""
        if not self._sizes:
            return self._of_shards(self._others)
        first = np.frombuffer(self._firsts, np.int64)
        # an object may come later than the rest of its sample, if a longer stem lies between
        order = np.argsort(first, kind="stable") if (np.diff(first) < 0).any() else np.arange(len(first))
        begins = np.flatnonzero(np.diff(first[order], prepend=-1))  # starts of samples, in ``order``
        counts = np.diff(begins, append=len(order))
        kinds = np.frombuffer(self._kinds, np.uint8)[order]
        primary = np.logical_or.reduceat(kinds == PRIMARY, begins)
        if not primary.any():
            if self._has_shards() or (counts.max() == 1 and (kinds == LINES).any()):
                return self._of_shards(self._as_shards())
            primary[:] = True  # only text in several files per sample, or JSON
        hidden = self._hidden()[order[begins]]  # all objects of a sample are in one folder
        if not hidden[primary].all():
            primary &= ~hidden
        return self._packed(order, np.repeat(primary, counts))

    def _of_shards(self, refs: Sequence[ObjectRef]) -> Grouped:
        """Return objects as shards, without the ignored ones."""
        kept = refs if self._ignored is None else self._ignored.without(refs)
        if len(kept) == len(refs):
            return Grouped(tuple(refs))
        left = iter(kept)
        following = next(left, None)
        lost: list[ObjectRef] = []
        for ref in refs:
            if ref is following:
                following = next(left, None)
            else:
                lost.append(ref)
        examples = tuple(ref.key for ref in lost[:EXAMPLES_MAX])
        return Grouped(tuple(kept), None, len(lost), examples, self._reasons(lost, _among_shards))

    def _has_shards(self) -> bool:
        """Whether there is an object that can be no part of a sample and is not ignored."""
        ignored = self._ignored
        return any(ignored is None or not ignored.is_ignored(ref.key, ref.size_bytes) for ref in self._others)

    def _hidden(self) -> NDArray[np.bool_]:
        """Return which objects of samples are in folders whose names begin with a dot."""
        ends = np.frombuffer(self._key_ends, np.int64)
        found = np.zeros(len(ends), np.bool_)
        if self._ignored is None:
            return found
        keys = np.frombuffer(self._keys, np.uint8)
        dots = np.flatnonzero(keys == ord("."))
        begins = np.concatenate(([0], ends[:-1]))
        owners = np.searchsorted(ends, dots, "right")
        # the start of a key also starts the name of a file or folder, unless the URL itself has that dot
        inside = keys[np.maximum(dots - 1, 0)] == ord("/")
        found[owners[((dots == begins[owners]) & self._ignored.judges_first) | ((dots > begins[owners]) & inside)]] = (
            True
        )
        return found

    def _as_shards(self) -> tuple[ObjectRef, ...]:
        """Return all objects in their original order."""
        members = self._members(np.arange(len(self._sizes)))
        places = np.array(self._samples_before, np.int64)
        found: list[ObjectRef] = []
        at = 0
        for ref, place in zip(self._others, places.tolist(), strict=True):
            found += [members.ref(number) for number in range(at, place)]
            found.append(ref)
            at = place
        return (*found, *(members.ref(number) for number in range(at, len(self._sizes))))

    def _packed(self, order: NDArray[np.int64], kept: NDArray[np.bool_]) -> Grouped:
        """Cut the kept objects into packs, and put shards between them at their positions.

        Args:
            order: all objects, grouped by sample.
            kept: whether each, in that order, belongs to a sample.
        """
        first = np.frombuffer(self._firsts, np.int64)[order[kept]]
        members = self._members(order[kept])
        begins = np.flatnonzero(np.diff(first, prepend=-1))
        shards = [
            (ref, place) for ref, place in zip(self._others, self._samples_before, strict=True) if self._is_shard(ref)
        ]
        places = np.searchsorted(first[begins], [place for _, place in shards])  # counted in samples
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
        others = [ref for ref in self._others if not self._is_shard(ref)] if len(shards) < len(self._others) else []
        reasons = summed([self._reasons(others, _among_samples), self._members_lost(order[~kept])])
        examples = itertools.chain.from_iterable(amount.examples for amount in reasons.values())
        return Grouped((*refs, *packs.refs[at:]), packs, lost, tuple(examples)[:EXAMPLES_MAX], reasons)

    def _borders(
        self, members: Members, begins: NDArray[np.int64], numbers: NDArray[np.int64], low: int, high: int
    ) -> NDArray[np.int64]:
        """Return the samples at which packs begin, among those between two shards."""
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
            keys, tags = texts_at(self._keys, key_ends, numbers), texts_at(self._tags, tag_ends, numbers)
            columns = (*keys, sizes[numbers], *tags)
        return Members(self._root, self._base, *columns, sample)

    def _is_shard(self, ref: ObjectRef) -> bool:
        """Whether an object among samples is a shard."""
        if kind_of(*split_name(ref.key)) != SHARD:
            return False
        return self._ignored is None or not self._ignored.is_ignored(ref.key, ref.size_bytes)

    def _members_lost(self, numbers: NDArray[np.int64]) -> dict[NoticeKind, Amount]:
        """Return why some objects of samples are left out."""
        hidden = self._hidden()[numbers]
        found: dict[NoticeKind, Amount] = {}
        for kind, chosen in (
            (NoticeKind.LONE_COMPANIONS, numbers[~hidden]),
            (NoticeKind.HIDDEN_SHARDS, numbers[hidden]),
        ):
            if len(chosen):
                first = self._members(chosen[:EXAMPLES_MAX])
                size_bytes = int(np.frombuffer(self._sizes, np.int64)[chosen].sum())
                found[kind] = Amount(len(chosen), size_bytes, tuple(map(first.key, range(len(first.sizes)))))
        return found

    def _reasons(self, lost: Sequence[ObjectRef], otherwise: Callable[[str], NoticeKind]) -> dict[NoticeKind, Amount]:
        """Return why other objects are left out.

        Args:
            lost: the objects.
            otherwise: returns the reason of an object that is not ignored by itself.
        """
        found: dict[NoticeKind, list[ObjectRef]] = {}
        for ref in lost:
            kind = self._ignored.reason(ref.key, ref.size_bytes) if self._ignored is not None else None
            found.setdefault(kind or otherwise(ref.key), []).append(ref)
        return {kind: amount_of(refs) for kind, refs in found.items()}


def _among_shards(key: str) -> NoticeKind:
    return NoticeKind.TABLES_BESIDE_TARS if key.endswith(".parquet") else NoticeKind.SIDE_FILES


def _among_samples(key: str) -> NoticeKind:
    return NoticeKind.TABLES_BESIDE_SAMPLES if is_table(key) else NoticeKind.UNKNOWN_OBJECTS


def object_bytes(sizes: NDArray[np.int64], packs: Iterable[Packs]) -> int:
    """Return the mean size of the objects behind shards of these sizes; objects in packs count singly."""
    count = len(sizes) + sum(len(one.members.sizes) - len(one) for one in packs)
    return int(sizes.sum()) // count if count else 0
