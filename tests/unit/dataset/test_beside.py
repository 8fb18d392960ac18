"""What other tools say of samples, and what is not believed of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.index_file import Row
from feedd.dataset.sidecars import ForeignCounts, SidecarCount, Surroundings, Unused, is_foreign_sidecar, is_sidecar
from feedd.notices import EXAMPLES_MAX, Amount
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("index.json", "shardindex.json", "sizes.json", "_info.json")
MOSAIC = {
    "version": 2,
    "shards": [
        {
            "format": "mds",
            "version": 2,
            "column_names": ["x"],
            "column_encodings": ["int"],
            "column_sizes": [8],
            "compression": "zstd",
            "hashes": [],
            "raw_data": {"basename": "shard.00000.mds", "bytes": 300, "hashes": {}},
            "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": 120, "hashes": {}},
            "samples": 7,
            "size_limit": 67108864,
        },
        {"raw_data": {"basename": "sub/shard.00001.mds", "bytes": 310}, "zip_data": None, "samples": 8},
    ],
}
WIDS = {
    "__kind__": "wids-shard-index-v1",
    "wids_version": 1,
    "name": "train",
    "shardlist": [
        {"url": "made/here/a.tar", "md5sum": "0", "nsamples": 3, "filesize": 4096},
        {"url": "b.tar", "md5sum": "0", "nsamples": 4, "filesize": 8192},
    ],
}
TIMM = {
    "splits": {
        "train": {"name": "train", "num_samples": 7, "filenames": ["a.tar", "b.tar"], "shard_lengths": [3, 4]},
        "validation": {"name": "validation", "num_samples": 5, "filenames": ["val/c.tar"], "shard_lengths": [5]},
    }
}


def _ref(key: str, size_bytes: int = 4096, root: str = "s3://b") -> ObjectRef:
    return ObjectRef(root, key, size_bytes, "tag")


def _claims(name: str, content: object) -> list[SidecarCount]:
    return list(ForeignCounts(f"train/{name}", json.dumps(content).encode()))


def _believed(refs: list[ObjectRef], name: str, content: object) -> dict[int, int]:
    return Surroundings(refs).believed(_ref(f"train/{name}"), _claims(name, content))


def _unused(refs: list[ObjectRef], name: str, content: object) -> Amount:
    unused = Unused()
    Surroundings(refs).believed(_ref(f"train/{name}"), _claims(name, content), unused)
    return unused.amount


def test_what_each_file_says() -> None:
    """Bytes where the file tells them; both forms of a compressed MDS shard; names below folders; columns."""
    assert _claims("index.json", MOSAIC) == [
        SidecarCount(
            "shard.00000.mds", 300, 7, 'mds:{"column_names":["x"],"column_encodings":["int"],"column_sizes":[8]}'
        ),
        SidecarCount("shard.00000.mds.zstd", 120, 7, again=True),
        SidecarCount("sub/shard.00001.mds", 310, 8),
    ]
    assert _claims("shardindex.json", WIDS) == [SidecarCount("a.tar", 4096, 3), SidecarCount("b.tar", 8192, 4)]
    assert _claims("sizes.json", {"a.tar": 3, "b.tar": "4"}) == [
        SidecarCount("a.tar", None, 3),
        SidecarCount("b.tar", None, 4),
    ]
    assert _claims("_info.json", TIMM) == [
        SidecarCount("a.tar", None, 3),
        SidecarCount("b.tar", None, 4),
        SidecarCount("val/c.tar", None, 5),
    ]


@given(name=st.sampled_from(NAMES), data=st.binary(max_size=200))
def test_rubbish_is_a_value_error(name: str, data: bytes) -> None:
    """Nothing is read as one of these files that is none."""
    if name == "sizes.json" and data.strip() == b"{}":  # a list of no shards
        assert list(ForeignCounts(name, data)) == []
        return
    with pytest.raises(ValueError, match="expected"):
        list(ForeignCounts(name, data))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.json", {}),
        ("index.json", {"name": "a web page", "version": "2"}),
        ("index.json", MOSAIC | {"version": 1}),
        ("index.json", {"version": 2, "shards": [{"samples": -1, "raw_data": {"basename": "a", "bytes": 1}}]}),
        ("index.json", {"version": 2, "shards": [{"samples": 1 << 50, "raw_data": {"basename": "a", "bytes": 1}}]}),
        ("index.json", {"version": 2, "shards": [{"raw_data": {"basename": "a", "bytes": 1}}]}),
        ("shardindex.json", WIDS | {"wids_version": 2}),
        ("shardindex.json", WIDS | {"shardlist": [{"url": "a", "nsamples": 1}]}),
        ("sizes.json", ["a.tar"]),
        ("sizes.json", {"a.tar": 1.5}),
        ("sizes.json", {"a.tar": {"samples": 1}}),
        ("sizes.json", {"a.tar": "many"}),
        ("_info.json", {"splits": {"train": {"num_samples": 7}}}),
        ("_info.json", {"splits": {"train": {"filenames": ["a", "b"], "shard_lengths": [1]}}}),
    ],
)
def test_damage_is_a_value_error(name: str, content: Any) -> None:
    """Other versions, lists that do not go together and numbers that are no counts are refused."""
    with pytest.raises(ValueError, match="expected"):
        _claims(name, content)


@pytest.mark.parametrize("name", NAMES)
def test_depth_is_a_value_error(name: str) -> None:
    """A file nested beyond what can be read is refused as any other."""
    with pytest.raises(ValueError, match="expected an index"):
        list(ForeignCounts(name, b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"))


def test_bytes_that_are_told_must_agree() -> None:
    """A shard of other bytes, in another folder or bucket, is not the one that was counted; the others still are."""
    refs = [
        _ref("train/shard.00000.mds", 300),
        _ref("train/shard.00000.mds.zstd", 121),
        _ref("train/sub/shard.00001.mds", 310),
        _ref("shard.00000.mds", 300),
        _ref("train/shard.00000.mds", 300, root="s3://other"),
    ]
    assert _believed(refs, "index.json", MOSAIC) == {0: 7, 2: 8}
    assert _believed([_ref("train/b.tar", 8192), _ref("train/a.tar", 4097)], "shardindex.json", WIDS) == {0: 4}


def test_counts_that_are_not_used_are_told() -> None:
    """A shard of other bytes and one that is not there are counted once each; either form of a shard will do."""
    one_form = [_ref("train/shard.00000.mds.zstd", 120), _ref("train/sub/shard.00001.mds", 310)]
    assert _unused(one_form, "index.json", MOSAIC) == Amount()
    other = [_ref("train/shard.00000.mds", 301)]
    assert _unused([*other, _ref("train/sub/shard.00001.mds", 310)], "index.json", MOSAIC) == Amount(
        1, 0, ("train/shard.00000.mds: counted as 300 bytes, has 301",)
    )
    gone = _unused([one_form[1]], "index.json", MOSAIC)
    assert gone == Amount(1, 0, ("train/shard.00000.mds: does not exist",))
    shards = [{"url": f"{n}.tar", "nsamples": 1, "filesize": 5} for n in range(9)]
    many = _unused([_ref("train/0.tar", 5)], "shardindex.json", WIDS | {"shardlist": shards})
    assert (many.count, len(many.examples)) == (8, EXAMPLES_MAX)


def test_rows_that_are_not_used_are_told() -> None:
    """Of feedd's own index: replaced shards, shards that are gone, and two counts of one, of which neither is used."""
    refs = [_ref(f"train/{name}", 9) for name in ("a", "b", "c", "d")]
    rows = [
        Row("a", 9, "tag", 1),
        Row("b", 9, "other", 2),
        Row("c", 8, "tag", 3),
        Row("d", 9, "tag", 4),
        Row("d", 9, "tag", 5),
        Row("d", 9, "tag", 4),
        Row("e", 9, "tag", 6),
    ]
    unused = Unused()
    assert Surroundings(refs).counted(_ref("train/_feedd_index.json"), rows, unused) == {0: 1}
    assert unused.amount == Amount(
        4,
        0,
        (
            "train/b: counted as 9 bytes with ETag other, has 9 with ETag tag",
            "train/c: counted as 8 bytes with ETag tag, has 9 with ETag tag",
            "train/d: counted as 4 samples and as 5",
        ),
    )


def test_without_bytes_the_names_must_agree() -> None:
    """Shards that came or went since, or were never there, show that the file is not of these."""
    refs = [_ref("train/a.tar"), _ref("train/b.tar"), _ref("train/sub/else.tar"), _ref("else.tar")]
    assert _believed(refs, "sizes.json", {"b.tar": 4, "a.tar": 3}) == {0: 3, 1: 4}
    with pytest.raises(ValueError, match=r"none for 1: 'train/b.tar'"):
        _believed(refs, "sizes.json", {"a.tar": 3})
    with pytest.raises(ValueError, match=r"got 1 that do not exist: 'train/c.tar'"):
        _believed(refs, "sizes.json", {"a.tar": 3, "b.tar": 4, "c.tar": 5})
    assert _believed([*refs, _ref("train/val/c.tar")], "_info.json", TIMM) == {0: 3, 1: 4, 4: 5}
    with pytest.raises(ValueError, match=r"got 1 that do not exist: 'train/val/c.tar'"):
        _believed(refs, "_info.json", TIMM)


def test_two_counts_of_one_shard_are_a_value_error() -> None:
    """A file that says two things of a shard that is there is believed nothing; of others it may say what it likes."""
    two = WIDS | {"shardlist": [{"url": f"{number}/a", "nsamples": number, "filesize": 5} for number in (1, 2)]}
    with pytest.raises(ValueError, match="expected one count for 'a', got two"):
        _believed([_ref("train/a", 5)], "shardindex.json", two)
    two["shardlist"].append({"url": "b", "nsamples": 3, "filesize": 6})  # type: ignore[attr-defined]  # a list
    assert _believed([_ref("train/b", 6)], "shardindex.json", two) == {0: 3}


def test_bytes_are_not_taken_for_samples() -> None:
    """A sizes.json of bytes, which the name would suit better, tells no samples; an empty shard has none."""
    with pytest.raises(ValueError, match="got 4096 for the 4096 bytes"):
        _believed([_ref("train/a.tar")], "sizes.json", {"a.tar": 4096})
    assert _believed([_ref("train/a.tar", 0)], "sizes.json", {"a.tar": 0}) == {0: 0}


def test_an_object_listed_twice() -> None:
    """Each time it is named it counts."""
    assert _believed([_ref("train/a.tar")] * 2, "sizes.json", {"a.tar": 3}) == {0: 3, 1: 3}


@pytest.mark.parametrize("name", NAMES)
def test_only_files_that_tell_formats_are_read_for_them(name: str) -> None:
    """A file whose kind tells no formats is not parsed a second time; MosaicML's and LitData's index is."""
    reads = 0

    def claims() -> Iterator[SidecarCount]:
        nonlocal reads
        reads += 1
        yield SidecarCount("a", 4096, 3, "mds:{}")

    formats = Surroundings([_ref("train/a")]).formats(_ref(f"train/{name}"), claims(), {0})
    assert (reads, formats) == ((1, {0: "mds:{}"}) if name == "index.json" else (0, {}))


def test_which_objects_are_no_shards() -> None:
    """By their whole name, in whatever folder."""
    assert all(
        is_sidecar(f"{folder}{name}") for name in (*NAMES, "__len__", "_feedd_index.json") for folder in ("", "a/b/")
    )
    assert not any(
        is_sidecar(name) for name in ("index.json.tar", "my_sizes.json", "sizes.json/a.tar", "len", "a.json")
    )
    assert is_foreign_sidecar("a/sizes.json")
    assert not is_foreign_sidecar("a/__len__")
    assert not is_foreign_sidecar("a/_feedd_index.json")
