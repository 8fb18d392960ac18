"""Packs as shards: where each sample's objects lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset.pack_layout import Table
from feedd.errors import BadShard
from feedd.formats.format_registry import get

FILES = get("files")


def pack(samples: list[dict[str, bytes]]) -> bytes:
    """Return a pack of samples, each the objects by key."""
    keys = [key.encode() for sample in samples for key in sample]
    bodies = [body for sample in samples for body in sample.values()]
    number = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    table = Table(
        np.array([len(body) for body in bodies], np.int64),
        number.astype(np.int64),
        np.cumsum([len(key) for key in keys]).astype(np.int64),
        b"".join(keys),
    )
    return table.render() + b"".join(bodies)


_WORDS = st.text(st.sampled_from("abc-_0/"), max_size=8).map(lambda word: word + "z")


@given(
    st.lists(
        st.tuples(
            _WORDS, st.dictionaries(st.sampled_from(["jpg", "json", "JPEG", "cls"]), st.binary(max_size=40), min_size=1)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_object_is_found(samples: list[tuple[str, dict[str, bytes]]]) -> None:
    """What an index says of a sample is its key and its objects' bytes."""
    data = pack([{f"{key}.{extension}": body for extension, body in fields.items()} for key, fields in samples])
    index = FILES.index(memoryview(data), "pack")
    assert [index.key(n) for n in range(index.sample_count)] == [key for key, _ in samples]
    for number, (_, fields) in enumerate(samples):
        got = {
            name: data[index.starts[column, number] :][: index.sizes[column, number]]
            for column, name in enumerate(index.fields)
            if index.sizes[column, number] >= 0
        }
        assert got == {name.lower(): body for name, body in fields.items()}


_DATA = pack([{f"a/{n}.jpg": b"x" * n, f"a/{n}.json": b"{}"} for n in range(5)])


@given(st.integers(0, len(_DATA) - 1), st.integers(0, 255), st.integers(0, len(_DATA)))
def test_damage_is_told(at: int, byte: int, length: int) -> None:
    """A pack with a byte changed, or cut short, is read or refused, and every place in it lies inside it."""
    damaged = bytearray(_DATA)
    damaged[at] = byte
    for data in (bytes(damaged), _DATA[:length]):
        try:
            index = FILES.index(memoryview(data), "pack")
        except BadShard:
            continue
        present = index.sizes >= 0
        assert (index.starts[present] >= 0).all()
        assert ((index.starts + index.sizes)[present] <= len(data)).all()


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """What is no pack is said to be none."""
    with pytest.raises(BadShard):
        FILES.index(memoryview(noise), "pack")
    with pytest.raises(BadShard):
        FILES.index(memoryview(b"feeddpak" + (1).to_bytes(4, "little") + noise), "pack")


def test_an_extension_twice_in_a_sample_is_refused() -> None:
    """Two objects of one sample cannot be one field."""
    with pytest.raises(BadShard, match="twice"):
        FILES.index(memoryview(pack([{"a.jpg": b"1", "a.JPG": b"2"}])), "pack")
