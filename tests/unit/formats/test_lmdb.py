"""LMDB, against what the library itself reads."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard, Unsupported
from feedd.formats.format_registry import format_for, get
from tests.budget import budget

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, entries: dict[bytes, bytes], *, batch: int = 1000, **options: Any) -> bytes:
    """Return a data file with these entries, written in several transactions."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 26, **options) as env:
        items = list(entries.items())
        for at in range(0, len(items), batch):
            with env.begin(write=True) as change:
                for key, value in items[at : at + batch]:
                    change.put(key, value)
    return path.read_bytes()


def read(data: bytes, url: str = "s3://b/data.mdb") -> list[tuple[str, dict[str, bytes]]]:
    """Return keys and fields of all samples."""
    index = get("lmdb").index(memoryview(data), url)
    return [
        (
            index.key(number),
            {
                name: data[int(index.starts[column, number]) :][: int(index.sizes[column, number])]
                for column, name in enumerate(index.fields)
                if index.sizes[column, number] >= 0
            },
        )
        for number in range(index.sample_count)
    ]


@pytest.mark.parametrize(("count", "batch"), [(0, 1), (1, 1), (7, 3), (3_000, 1_000)])
@pytest.mark.slow
def test_entries_are_what_the_library_reads(tmp_path: Path, count: int, batch: int) -> None:
    """Of all sizes, in order of keys, over one level of pages or several; also those written over and deleted."""
    source = np.random.default_rng(count)
    entries = {
        b"%08d" % number: source.bytes(int(size))
        for number, size in enumerate(source.choice([0, 1, 100, 2_000, 2_030, 4_080, 4_081, 9_000], count))
    }
    path = tmp_path / "data.mdb"
    write(path, dict(reversed(entries.items())), batch=batch)
    with lmdb.open(str(path), subdir=False, map_size=1 << 26) as env, env.begin(write=True) as change:
        for key in list(entries)[::5]:
            change.delete(key)
            del entries[key]
        for key in list(entries)[::7]:
            entries[key] += b"more"
            change.put(key, entries[key])
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as now:
        expected = [(key.decode(), {"data": value}) for key, value in now.cursor()]
    assert read(path.read_bytes()) == expected
    assert [fields["data"] for _, fields in expected] == [entries[key] for key in sorted(entries)]


def test_what_is_about_the_others_is_no_sample(tmp_path: Path) -> None:
    """As torch's usual scripts leave it."""
    entries = {b"%d" % number: b"v%d" % number for number in range(3)}
    about = {b"__len__": pickle.dumps(3), b"__keys__": pickle.dumps(list(entries)), b"length": b"3"}
    data = write(tmp_path / "data.mdb", entries | about)
    assert read(data) == [(f"{number}", {"data": b"v%d" % number}) for number in range(3)]
    assert read(b"whatever", "s3://b/x.lmdb/lock.mdb") == []
    assert format_for("s3://b/x.lmdb/data.mdb") == "lmdb"


def test_keys_may_name_fields(tmp_path: Path) -> None:
    """Names, a dash and numbers make samples of several fields; with another key among them they are as they are."""
    entries = {b"image-%09d" % n: b"i%d" % n for n in (1, 2)} | {b"Label-%09d" % n: b"l%d" % n for n in (2, 3)}
    data = write(tmp_path / "a.mdb", entries | {b"num-samples": b"2"})
    assert sorted(read(data)) == [
        ("000000001", {"image": b"i1"}),
        ("000000002", {"image": b"i2", "label": b"l2"}),
        ("000000003", {"label": b"l3"}),
    ]
    assert len(read(write(tmp_path / "b.mdb", {b"a-1": b"x", b"b": b"y"}))) == 2
    (only,) = read(write(tmp_path / "c.mdb", {b"\xff\x00": b"x"}))
    assert only == ("00000000", {"data": b"x"})


def test_what_cannot_be_samples_is_refused(tmp_path: Path) -> None:
    """Pickles, several databases, several values of a key: each with a word why."""
    with pytest.raises(Unsupported, match="got pickles"):
        read(write(tmp_path / "a.mdb", {b"1": pickle.dumps((1, b"x" * 10_000))}))
    with lmdb.open(str(tmp_path / "b.mdb"), subdir=False, max_dbs=2) as env:
        one = env.open_db(b"one")
        with env.begin(write=True, db=one) as change:
            change.put(b"k", b"v")
    with pytest.raises(Unsupported, match="one database"):
        read((tmp_path / "b.mdb").read_bytes())


@pytest.mark.parametrize("data", [b"", b"x" * 200, bytes(8192)])
def test_other_files_are_refused(data: bytes) -> None:
    """What is no LMDB is a BadShard."""
    with pytest.raises(BadShard):
        read(data)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of two levels."""
    entries = {b"%06d" % number: bytes([number % 256]) * (number % 5_000) for number in range(400)}
    return write(tmp_path_factory.mktemp("lmdb") / "data.mdb", entries)


@settings(max_examples=budget(200), deadline=None)
@given(data=st.data())
def test_no_bytes_do_harm(seed: bytes, data: st.DataObject) -> None:
    """A file damaged anywhere, most of all where pages say what they are, is an index within its bytes, or refused."""
    whole = io.BytesIO(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        page = data.draw(st.integers(0, len(seed) // 4096 - 1))
        whole.seek(page * 4096 + data.draw(st.integers(0, 200)))
        whole.write(data.draw(st.binary(min_size=1, max_size=4)))
    damaged = whole.getvalue()[: data.draw(st.sampled_from([len(seed), len(seed) - 5_000, 9_000]))]
    try:
        index = get("lmdb").index(memoryview(damaged), "s3://b/data.mdb")
    except (BadShard, Unsupported):
        return
    assert (index.starts + index.sizes <= len(damaged)).all()
    assert (index.starts >= 0).all()
