"""The objects of a very large listing in columns: about 40 bytes for each, and the text of its key. Pure."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from feedd.dataset.packs import packed_tag, unpacked_tag
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.conversion import Conversion


class RefColumns(Sequence[ObjectRef]):
    """Objects as a sequence that makes each when it is asked for."""

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        kinds: dict[tuple[str, Conversion | None], int] = {}
        keys, tags = bytearray(), bytearray()
        self._sizes, self._kind_of = array("q"), array("i")
        self._key_ends, self._tag_ends = array("q", [0]), array("q", [0])
        for ref in refs:
            keys += ref.key.encode("utf-8", "surrogatepass")
            self._key_ends.append(len(keys))
            tags += packed_tag(ref.etag)
            self._tag_ends.append(len(tags))
            self._sizes.append(ref.size_bytes)
            self._kind_of.append(kinds.setdefault((ref.root, ref.conversion), len(kinds)))
        self._keys, self._tags = bytes(keys), bytes(tags)
        self._kinds = list(kinds)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> ObjectRef: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ObjectRef]: ...
    def __getitem__(self, at: int | slice) -> ObjectRef | Sequence[ObjectRef]:
        if isinstance(at, slice):
            return tuple(self._ref(number) for number in range(*at.indices(len(self))))
        number = operator.index(at)
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected an object of {len(self)}, got number {number}")
        return self._ref(number % len(self))

    def __iter__(self) -> Iterator[ObjectRef]:
        return map(self._ref, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RefColumns):
            return NotImplemented
        return self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]  # as a list

    @property
    def conversions(self) -> set[Conversion | None]:
        """All conversions of the objects."""
        return {conversion for _, conversion in self._kinds}

    def _columns(self) -> tuple[object, ...]:
        numbers = self._sizes, self._kind_of, self._key_ends, self._tag_ends
        return self._kinds, *numbers, self._keys, self._tags

    def _ref(self, number: int) -> ObjectRef:
        root, conversion = self._kinds[self._kind_of[number]]
        key = self._keys[self._key_ends[number] : self._key_ends[number + 1]].decode("utf-8", "surrogatepass")
        tag = unpacked_tag(self._tags[self._tag_ends[number] : self._tag_ends[number + 1]])
        return ObjectRef(root, key, self._sizes[number], tag, conversion)
