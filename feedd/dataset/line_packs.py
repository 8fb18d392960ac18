"""Packs of a manifest's lines: each pack holds the text of some lines, and the objects that these lines name. Pure.

A pack's object 0 is the text of its lines: a range of the manifest. The named objects follow, line by line. Each line
has as many as the manifest has attributes that name objects. If a line names no object, or a missing one, a lost object
without bytes takes its place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from feedd.dataset.pack_borders import borders
from feedd.dataset.pack_layout import LINES_TAG, LineObject, Table, table_bytes
from feedd.dataset.packs import Members, Packs
from feedd.shard_index import ShardIndex
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_KEY_DIGITS: Final = 8
_WEIGHT: Final = 4  # so that a pack has 64 to 256 lines, and manifests of few lines are enough for several nodes
_UNNAMED: Final = "expected a line with this attribute, got none"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a manifest's lines.

    Attributes:
        name: name, as the lines write it.
        encoding: see ``recipe.encodings``.
    """

    name: str
    encoding: str


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The lines of a manifest that are samples, in columns.

    Attributes:
        starts: int64[lines], offset of each line in the manifest.
        sizes: int64[lines], bytes of each line, without the line's end.
        numbers: int64[lines], number of each line in the manifest, from 1; blank lines count too.
        digests: uint64[lines], hash of each line's text.
        values: attributes whose values are in the lines.
        references: attributes whose values are URLs of objects.
        targets: int64[lines, references], number of the object that each line names; -1: it names none.
        faults: why a line names no object, by line and reference; others lack the attribute.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    digests: NDArray[np.uint64]
    values: tuple[Attribute, ...]
    references: tuple[Attribute, ...]
    targets: NDArray[np.int64]
    faults: Mapping[tuple[int, int], str]

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class LineMembers(Members):
    """The objects of all packs of a manifest. ``Members.key`` does not name them.

    Attributes:
        manifest: the manifest.
        lines: its lines.
        targets: the objects that the lines name.
        firsts: int64[packs + 1], see ``Packs``.
        line_firsts: int64[packs + 1], the first line of each pack, and the number of lines.
        is_lost: bool[objects], whether a line names no object, or a missing one.
    """

    manifest: ObjectRef
    lines: Lines
    targets: Sequence[ObjectRef]
    firsts: NDArray[np.int64]
    line_firsts: NDArray[np.int64]
    is_lost: NDArray[np.bool_]

    def ref(self, number: int) -> ObjectRef:
        """Return one object as a ref; of a text, and of a line that names no object, the manifest."""
        pack, at = self._locate(number)
        if at < 0:
            return self.manifest
        line, reference = divmod(at, len(self.lines.references))
        target = int(self.lines.targets[self.line_firsts[pack] + line, reference])
        return self.manifest if target < 0 else self.targets[target]

    def offset(self, number: int) -> int:
        """Return the offset in its ref at which one object begins."""
        pack, at = self._locate(number)
        return int(self.lines.starts[self.line_firsts[pack]]) if at < 0 else 0

    def described(self, pack: int) -> list[LineObject]:
        """Return what stands at each object of a pack, in order."""
        lines = self.lines
        span = range(int(self.line_firsts[pack]), int(self.line_firsts[pack + 1]))
        found = [LineObject(int(lines.numbers[span.start]), "", self.manifest.url)]
        for line in span:
            number = int(lines.numbers[line])
            for reference, target in enumerate(lines.targets[line].tolist()):
                url = self.targets[target].url if target >= 0 else ""
                fault = "" if url else lines.faults.get((line, reference), _UNNAMED)
                found.append(LineObject(number, lines.references[reference].name, url, fault))
        return found

    def _locate(self, number: int) -> tuple[int, int]:
        """Return an object's pack, and its number among the named objects there; -1: the text."""
        pack = int(np.searchsorted(self.firsts, number, "right")) - 1
        return pack, number - int(self.firsts[pack]) - 1


class LinePacks(Packs):
    """Packs of the lines of one manifest. Their ``members`` are ``LineMembers``."""

    __slots__ = ()

    @property
    def has_texts(self) -> bool:
        """Whether all samples of a pack need its object 0: yes."""
        return True

    def samples(self, number: int) -> slice:
        """Return the samples of a pack, among all samples."""
        firsts = _members(self).line_firsts
        return slice(int(firsts[number]), int(firsts[number + 1]))

    def objects_of(self, number: int, samples: NDArray[np.int64]) -> set[int]:  # noqa: ARG002 - packs are alike
        """Return which objects of a pack hold some of its samples, and the text."""
        each = len(_members(self).lines.references)
        return {0, *(1 + each * line + at for line in samples.tolist() for at in range(each))}

    def table(self, number: int) -> Table:
        """Return the table at the start of a pack."""
        return _table(_members(self), number)

    def own_index(self, number: int) -> ShardIndex:
        """Return the index of a pack: keys are line numbers, and attributes are fields, in lower case.

        A value in a line has the place of the whole line, because only the codec parses the line.
        """
        members, rows = _members(self), self.samples(number)
        lines, span = members.lines, self.span(number)
        shape = rows.stop - rows.start, len(lines.references)
        edges = self.table(number).starts()
        sizes = np.where(members.is_lost, -1, members.sizes)[span.start + 1 : span.stop]
        line_starts = lines.starts[rows] - lines.starts[rows.start] + edges[0]
        keys = [b"%0*d" % (_KEY_DIGITS, line) for line in lines.numbers[rows].tolist()]
        attributes = (*lines.values, *lines.references)
        return ShardIndex(
            tuple(one.name.lower() for one in attributes),
            np.vstack([*[line_starts] * len(lines.values), edges[1:-1].reshape(shape).T]),
            np.vstack([*[lines.sizes[rows]] * len(lines.values), sizes.reshape(shape).T]),
            b"".join(keys),
            np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys))),
            tuple(one.encoding for one in attributes),
        )


def packs_of_lines(manifest: ObjectRef, lines: Lines, targets: Sequence[ObjectRef], missing: set[int]) -> LinePacks:
    """Cut a manifest's lines into packs; takes microseconds for each line.

    Args:
        manifest: the manifest.
        lines: its lines; at least one.
        targets: the objects that the lines name.
        missing: numbers of targets that do not exist; these have no bytes.
    """
    target_sizes = np.full(len(targets) + 1, -1, np.int64)
    for at, ref in enumerate(targets):
        target_sizes[at] = -1 if at in missing else ref.size_bytes
    cells = target_sizes[lines.targets]  # the last one for lines without an object
    each = len(lines.references)
    marks = (lines.digests & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    object_counts = np.full(len(lines), _WEIGHT * max(each, 1), np.int64)  # a text alone counts as an object
    line_firsts = borders(np.maximum(cells, 0).sum(axis=1) + lines.sizes, object_counts, marks)
    firsts = line_firsts * each + np.arange(len(line_firsts))
    is_text = np.zeros(int(firsts[-1]), np.bool_)
    is_text[firsts[:-1]] = True
    last = line_firsts[1:] - 1
    columns = np.zeros((3, len(is_text)), np.int64)
    columns[:, is_text] = (
        lines.starts[last] + lines.sizes[last] - lines.starts[line_firsts[:-1]],
        line_firsts[:-1],
        np.zeros(len(last), np.int64),
    )
    columns[:, ~is_text] = (
        np.maximum(cells, 0).ravel(),
        np.repeat(np.arange(len(lines)), each),
        cells.ravel() < 0,
    )
    sizes, sample, is_lost = columns
    nothing = np.zeros(0, np.int64)
    members = LineMembers(
        *(manifest.root, "", b"", nothing, sizes, b"", nothing, sample),
        *(manifest, lines, targets, firsts, line_firsts, is_lost.astype(np.bool_)),
    )
    refs = tuple(_ref(members, number) for number in range(len(line_firsts) - 1))
    counts = tuple(np.diff(line_firsts).tolist())
    return LinePacks(members, firsts, refs, counts, {ref: number for number, ref in enumerate(refs)})


def _members(packs: LinePacks) -> LineMembers:
    assert isinstance(packs.members, LineMembers), "packs of lines have members of lines"
    return packs.members


def _table(members: LineMembers, pack: int) -> Table:
    low, high = int(members.firsts[pack]), int(members.firsts[pack + 1])
    names = [one.render() for one in members.described(pack)]
    return Table(
        members.sizes[low:high],
        members.sample[low:high] - members.sample[low],
        np.cumsum(np.fromiter(map(len, names), np.int64, len(names))),
        b"".join(names),
        tuple(np.flatnonzero(members.is_lost[low:high]).tolist()),
    )


def _ref(members: LineMembers, pack: int) -> ObjectRef:
    """Return a pack's ref: its key names the manifest and the lines, its etag digests the content.

    The manifest's own etag is left out, so that cached packs stay valid if lines are appended to the manifest.
    """
    lines, manifest = members.lines, members.manifest
    low, high = int(members.line_firsts[pack]), int(members.line_firsts[pack + 1])
    table = _table(members, pack)
    named = dict.fromkeys(lines.targets[low:high].ravel().tolist())
    tags = [members.targets[target].etag for target in named if target >= 0]
    digest = hashlib.blake2b(digest_size=16)
    for part in (
        repr((manifest.url, lines.values, lines.references, tags)).encode("utf-8", "surrogatepass"),
        table.render(),
        (lines.starts[low:high] - lines.starts[low]).astype("<i8").tobytes(),
        lines.sizes[low:high].astype("<i8").tobytes(),
        lines.digests[low:high].astype("<u8").tobytes(),
    ):
        digest.update(part)
    size_bytes = table_bytes(len(table.sizes), len(table.keys)) + int(table.sizes.sum())
    first, last = int(lines.numbers[low]), int(lines.numbers[high - 1])
    return ObjectRef(manifest.root, f"{manifest.key}+{first}-{last}", size_bytes, LINES_TAG + digest.hexdigest())
