"""The layout of frozen manifests: what is written is read, and nothing else is taken for a manifest."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.frozen_manifest import Head, Manifest, Notice, parse, render
from feedd.dataset.packs import packed_tag

_TAGS = st.one_of(st.just("0123456789abcdef" * 2), st.just("0123456789abcdef" * 2 + "-12"), st.text(max_size=20))
_KEYS = st.one_of(st.text(min_size=1, max_size=12), st.just("\udcff.tar"))
_ROWS = st.lists(st.tuples(_KEYS, st.integers(0, 1 << 50), _TAGS, st.integers(-1, 1 << 30)), max_size=30)


def manifest(rows: list[tuple[str, int, str, int]], **facts: Any) -> Manifest:
    """Return the columns of objects: key, size, etag and samples."""
    keys = [key.encode("utf-8", "surrogatepass") for key, *_ in rows]
    tags = [packed_tag(tag) for _, _, tag, _ in rows]
    names = np.zeros(len(rows), np.uint16)
    return Manifest(
        Head(objects=0, key_bytes=0, tag_bytes=0, names=("x.tar",), **facts),
        b"".join(keys),
        [0, *itertools.accumulate(map(len, keys))],
        np.array([size for _, size, _, _ in rows], np.int64),
        b"".join(tags),
        [0, *itertools.accumulate(map(len, tags))],
        np.array([count for *_, count in rows], np.int64),
        names,
        names,
    )


@given(_ROWS)
def test_what_is_written_is_read(rows: list[tuple[str, int, str, int]]) -> None:
    """All columns and facts come back, for keys and etags of any length."""
    left_out = (Notice("hidden-files", 3, 17, ("a", "b")),)
    written = manifest(rows, format="tfrecord", left_out=left_out)
    read = parse(memoryview(render(written)))
    assert (read.head.objects, read.head.format, read.head.left_out) == (len(rows), "tfrecord", left_out)
    assert (read.keys, read.tags) == (written.keys, written.tags)
    assert (list(read.key_ends), list(read.tag_ends)) == (list(written.key_ends), list(written.tag_ends))
    for name in ("sizes", "counts", "names", "formats"):
        assert np.array_equal(getattr(read, name), getattr(written, name)), name


_ROWS_TWO = [("a.tar", 10, "ab", 3), ("bb.tar", 20, "0123456789abcdef" * 2, 4)]


@given(st.data())
def test_a_changed_byte_is_damage(data: st.DataObject) -> None:
    """Wherever it lies, and wherever the file is cut."""
    good = render(manifest(_ROWS_TWO))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    for text in (bytes(bad), good[:at]):
        with pytest.raises(ValueError, match=r"expected a manifest"):
            parse(memoryview(text))


def _with_head(change: dict[str, Any]) -> memoryview:
    """Return a manifest with other facts in its head, and a right digest."""
    good = render(manifest(_ROWS_TWO))
    size = int.from_bytes(good[8:12], "little")
    head = msgspec.json.encode(msgspec.json.decode(good[12 : 12 + size]) | change)
    text = good[:8] + len(head).to_bytes(4, "little") + head + good[12 + size : -32]
    return memoryview(text + hashlib.blake2b(text, digest_size=32).digest())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"objects": 1 << 40}, "numbers that"),
        ({"objects": -1}, "numbers that"),
        ({"objects": 3}, "6 bytes in column"),
        ({"key_bytes": 1 << 40}, "keys and etags of 2 objects"),
        ({"key_bytes": 12}, "keys of 12 bytes"),
        ({"tag_bytes": 2000}, "etags of 2000 bytes"),
        ({"columns": {"keys": 1 << 40}}, "a column within"),
        ({"columns": {"keys": -1}}, "a column within"),
        ({"columns": {}}, "a column 'key_bytes'"),
        ({"formats": []}, "formats that begin"),
        ({"objects": "two"}, "the head of a manifest"),
    ],
)
def test_lengths_are_checked_before_memory_is_taken(change: dict[str, Any], reason: str) -> None:
    """A head that promises more than the file can hold is refused by its numbers."""
    with pytest.raises(ValueError, match=f"expected {reason}"):
        parse(_with_head(change))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("a", 1, "x", -2)], "counts of samples from -1"),
        ([("a", 1, "x", 1 << 41)], "counts of samples from -1"),
        ([("a", -1, "x", 0)], "sizes from 0"),
        ([("", 1, "x", 0)], "keys, got an empty one"),
    ],
)
def test_impossible_values_are_refused(rows: list[tuple[str, int, str, int]], reason: str) -> None:
    """Whoever wrote them."""
    with pytest.raises(ValueError, match=f"expected {reason}"):
        parse(memoryview(render(manifest(rows))))


def test_keys_end_at_characters() -> None:
    """A character is never shared by two keys."""
    whole = manifest([("é", 1, "x", 0), ("a", 1, "x", 0)])
    cut = replace(whole, key_ends=[0, 1, 3])
    with pytest.raises(ValueError, match="ends inside a character"):
        parse(memoryview(render(cut)))


def test_another_version_is_named() -> None:
    """A newer layout is no damage."""
    newer = bytearray(render(manifest(_ROWS_TWO)))
    newer[7] = 2
    with pytest.raises(ValueError, match="expected a manifest of version 1, got version 2"):
        parse(memoryview(newer))
