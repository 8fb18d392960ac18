"""Which objects are samples, and how they are grouped into packs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.object_grouper import Grouped, ObjectGrouper
from feedd.catalog.object_kinds import OTHER, PRIMARY, SHARD, kind_of
from feedd.dataset.object_names import split_name
from feedd.dataset.pack_borders import (
    PACK_BYTES_LEAST,
    PACK_BYTES_MOST,
    PACK_OBJECTS_LEAST,
    PACK_OBJECTS_MOST,
    borders,
)
from feedd.dataset.pack_layout import is_pack
from feedd.dataset.packs import packed_tag, unpacked_tag
from feedd.values import ObjectRef

MIB = 1 << 20
_NAMES = st.text(st.sampled_from("ab-.0/"), min_size=1, max_size=6)
_EXTENSIONS = st.sampled_from(["jpg", "JPG", "png", "json", "txt", "cls", "tar", "csv", "md", "jsonl", ""])
_SIZES = st.one_of(st.integers(0, 10_000), st.integers(MIB, 48 * MIB))


def refs_of(objects: dict[str, int], etags: str = "e") -> list[ObjectRef]:
    """Return a listing of objects below ``d/``."""
    return [ObjectRef("s3://b", f"d/{key}", size, f"{etags}-{key}") for key, size in sorted(objects.items())]


def grouped(refs: list[ObjectRef], page: int = 1000) -> Grouped:
    """Group a listing that comes in pages."""
    gathering = ObjectGrouper("d/")
    for at in range(0, len(refs), page):
        gathering.add(refs[at : at + page])
    return gathering.grouped()


def members_of(found: Grouped) -> list[list[ObjectRef]]:
    """Return the objects of each pack."""
    packs = found.packs
    return [] if packs is None else [[packs.members.ref(n) for n in packs.span(k)] for k in range(len(packs))]


@st.composite
def listings(draw: st.DrawFn) -> list[ObjectRef]:
    """Draw objects of any names."""
    names = draw(st.lists(st.tuples(_NAMES, _EXTENSIONS, _SIZES), max_size=60))
    objects = {f"{name}.{extension}" if extension else name: size for name, extension, size in names}
    return refs_of({key: size for key, size in objects.items() if not key.startswith("/")})


@given(listings(), st.integers(1, 7))
def test_every_object_has_one_place(refs: list[ObjectRef], page: int) -> None:
    """Each object is in one pack, a shard, or left out; a listing in other pages is grouped alike."""
    found = grouped(refs)
    shards = [ref for ref in found.refs if not is_pack(ref)]
    packed = [ref for pack in members_of(found) for ref in pack]
    assert len(set(packed + shards)) == len(packed) + len(shards) == len(refs) - found.left_out
    assert set(packed + shards) <= set(refs)
    assert bool(found.examples) == bool(found.left_out)
    packs = found.packs
    assert tuple(ref for ref in found.refs if is_pack(ref)) == (() if packs is None else packs.refs)
    again = grouped(refs, page)
    assert again.refs == found.refs


@given(listings())
def test_objects_of_one_name_are_one_sample(refs: list[ObjectRef]) -> None:
    """What shares a name but for the extension is one sample of one pack; sizes and counts are what they say."""
    found = grouped(refs)
    packs = found.packs
    if packs is None:
        return
    stems: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    twice = {stem for stem, extensions in _extensions(refs).items() if len(set(extensions)) < len(extensions)}
    for number, ref in enumerate(packs.refs):
        table, span = packs.table(number), packs.span(number)
        assert ref.size_bytes == table.starts()[-1]
        assert packs.counts[number] == table.sample[-1] + 1 == len(np.unique(table.sample))
        assert [f"d/{name}" for name in table.names()] == [packs.members.key(n) for n in span]
        for name, sample in zip(table.names(), table.sample.tolist(), strict=True):
            stems[split_name(name)[0]].add((number, sample))
    assert len({place for places in stems.values() for place in places}) == sum(packs.counts)
    assert all(len(places) == 1 for stem, places in stems.items() if stem not in twice)


def _extensions(refs: list[ObjectRef]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for ref in refs:
        stem, extension = split_name(ref.key.removeprefix("d/"))
        found[stem].append(extension)
    return found


@given(
    st.lists(st.tuples(_SIZES, st.integers(1, 3), st.integers(0, 2**32 - 1)), min_size=1, max_size=400),
)
def test_packs_are_neither_small_nor_large(samples: list[tuple[int, int, int]]) -> None:
    """A pack keeps within its bounds, unless it is one sample; small is the last, or one before a large sample."""
    sizes, counts, marks = (np.array(column) for column in zip(*samples, strict=True))
    found = borders(sizes, counts, marks.astype(np.uint32)).tolist()
    assert found[0] == 0
    assert found[-1] == len(samples)
    for low, high in pairwise(found):
        assert low < high
        total, objects = int(sizes[low:high].sum()), int(counts[low:high].sum())
        if high - low > 1:
            assert total <= PACK_BYTES_MOST
            assert objects <= PACK_OBJECTS_MOST
        if total < PACK_BYTES_LEAST and objects < PACK_OBJECTS_LEAST and high < len(samples):
            assert total + int(sizes[high]) > PACK_BYTES_MOST


def test_many_small_ones_are_packed_by_number() -> None:
    """Ten thousand objects of a kilobyte make packs of 256 to 1,024."""
    found = grouped(refs_of({f"{n:05d}.jpg": 1000 for n in range(10_000)}))
    assert found.packs is not None
    counts = found.packs.counts
    assert sum(counts) == 10_000
    assert all(PACK_OBJECTS_LEAST <= count <= PACK_OBJECTS_MOST for count in counts[:-1])


@pytest.mark.parametrize("where", [0, 1700, 2999])
def test_a_new_object_moves_few_borders(where: int) -> None:
    """One object more leaves nearly all packs what they were, so what the cache holds of them stays good."""
    objects = {f"{n:05d}.jpg": 100_000 + n % 977 for n in range(3000)}
    before = grouped(refs_of(objects)).refs
    objects[f"{where:05d}x.jpg"] = 100_000
    after = grouped(refs_of(objects)).refs
    assert len(before) > 10
    assert len(set(before) - set(after)) <= 3


def test_a_changed_object_changes_its_pack() -> None:
    """Another version or size of one object makes another version of its pack, and of no other."""
    objects = {f"{n:05d}.jpg": 100_000 for n in range(1000)}
    refs = refs_of(objects)
    before = grouped(refs).refs
    refs[500] = ObjectRef("s3://b", refs[500].key, refs[500].size_bytes, "another")
    assert len(set(before) - set(grouped(refs).refs)) == 1


def test_what_lies_among_samples() -> None:
    """Tables about samples, notes and hidden files are left out; shards stay where they are, whatever is near."""
    keys = [
        "._a.jpg",
        ".DS_Store",
        "README.md",
        "a.jpg",
        "a.json",
        "b.tar",
        "c.jpg",
        "labels.csv",
        "meta.jsonl",
        "z.txt",
    ]
    found = grouped(refs_of(dict.fromkeys(keys, 10)))
    assert [[ref.key for ref in pack] for pack in members_of(found)] == [["d/a.jpg", "d/a.json"], ["d/c.jpg"]]
    assert [ref.key for ref in found.refs] == ["d/a.jpg+1", "d/b.tar", "d/c.jpg+0"]
    assert found.left_out == 6


def test_shards_are_as_they_were() -> None:
    """Without a picture, a sound or the like, text, lines and tars are the shards they always were."""
    for keys in (["a.tar", "b.tar", "info.json"], ["a.txt", "b.txt"], ["a.jsonl", "b.jsonl"], ["a.foo", "b"]):
        refs = refs_of(dict.fromkeys(keys, 10))
        found = grouped(refs)
        assert found.refs == tuple(refs)
        assert (found.packs, found.left_out) == (None, 0)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("d/part.parquet-00000-of-00010", SHARD),
        ("d/a.tfrecord-00000-of-00010.gz", SHARD),
        ("d/a.tar.gz-00000-of-00010", SHARD),
        ("d/a.txt-1-of-2", SHARD),
        ("d/a.jpg-1-of-2", OTHER),
        ("d/a.jpg", PRIMARY),
        ("d/.parquet-1-of-2", OTHER),
    ],
)
def test_files_of_one_data_set_are_numbered_behind_their_extension(key: str, kind: int) -> None:
    """Those that hold many samples are shards."""
    assert kind_of(*split_name(key)) == kind


def test_text_with_companions_is_samples() -> None:
    """Text and its class, and JSON alone, are samples; so is a name that another one continues."""
    found = grouped(refs_of(dict.fromkeys(["a.cls", "a.txt", "b.cls", "b.txt"], 1)))
    assert found.packs is not None
    assert found.packs.counts == (2,)
    alone = grouped(refs_of(dict.fromkeys(["a.json", "b.json"], 1)))
    assert alone.packs is not None
    assert alone.packs.counts == (2,)
    nested = grouped(refs_of(dict.fromkeys(["a.jpg", "a.seg.png", "a.txt"], 1)))
    assert [[ref.key for ref in pack] for pack in members_of(nested)] == [["d/a.jpg", "d/a.txt", "d/a.seg.png"]]


@given(
    st.one_of(
        st.text(),
        st.binary(min_size=16, max_size=16).map(bytes.hex),
        st.text("0123456789ABCDEFabcdef", min_size=32, max_size=32),
        st.text("a", min_size=13, max_size=17),
    )
)
def test_etags_come_back(etag: str) -> None:
    """What is kept of an etag gives it back, be it an MD5 sum or not."""
    if not etag.startswith("\0"):
        assert unpacked_tag(packed_tag(etag)) == etag
