from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedd.batching.gather import gather, keys, reads_as, shard_urls
from feedd.shard_index import ShardIndex
from feedd.values import FieldRecipe


def index(fields: tuple[str, ...], sizes: list[list[int]], names: list[str]) -> ShardIndex:
    """Return an index whose starts tell column and sample."""
    columns = np.array(sizes, np.int64).reshape(len(fields), len(names))
    starts = np.arange(columns.size, dtype=np.int64).reshape(columns.shape) * 1000
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return ShardIndex(fields, starts, columns, b"".join(encoded), ends)


ONE = index(("jpg", "cls"), [[10, 11, -1], [1, -1, 1]], ["a", "bb", "ünï"])
TWO = index(("cls", "png"), [[2, 2], [20, -1]], ["x", ""])


def recipe(*sources: str) -> FieldRecipe:
    """Return a recipe with these sources."""
    return FieldRecipe(sources[0], sources, "bytes")


def test_spans_come_from_the_right_shard_sample_and_column() -> None:
    """Row i has start and size of sample ordinal[i] in shard shard_no[i], whatever the order of columns there."""
    shard_no, ordinal = np.array([1, 0, 0, 1], np.int32), np.array([1, 2, 0, 0])
    (span,) = gather((ONE, TWO), shard_no, ordinal, (recipe("cls"),))
    assert span.start.tolist() == [1000, 5000, 3000, 0]
    assert span.size.tolist() == [2, 1, 1, 2]


def test_the_first_source_a_sample_has_wins() -> None:
    """Alternatives are resolved sample by sample; a sample with none of them is missing."""
    shard_no, ordinal = np.array([0, 0, 0, 1, 1], np.int32), np.array([0, 1, 2, 0, 1])
    pictures, classes = gather((ONE, TWO), shard_no, ordinal, (recipe("png", "jpg"), recipe("cls")))
    assert pictures.size.tolist() == [10, 11, -1, 20, -1]
    assert classes.size.tolist() == [1, -1, 1, 2, 2]


def test_one_number_and_any_number_of_them_are_read_alike() -> None:
    """A shard where some sample has several labels, one where none has: each sample tells whether it can be read."""
    assert reads_as("float32", "float32[]")
    assert reads_as("float32[]", "float32")
    assert reads_as("", "")
    for stored, wanted in (
        ("float32", "float64[]"),
        ("float32[]", "float32[][]"),
        ("float32[2]", "float32"),
        ("", "text"),
    ):
        assert not reads_as(stored, wanted)
        assert not reads_as(wanted, stored)


@given(data=st.data(), rows=st.integers(0, 30))
def test_gather_equals_looking_up_one_by_one(data: st.DataObject, rows: int) -> None:
    """The vectorised lookup gives what a loop over rows gives."""
    indexes = (ONE, TWO)
    picks = [data.draw(st.sampled_from([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])) for _ in range(rows)]
    shard_no = np.array([pick[0] for pick in picks], np.int32)
    ordinal = np.array([pick[1] for pick in picks], np.int64)
    sources = data.draw(st.lists(st.sampled_from(["jpg", "png", "cls", "none"]), min_size=1, unique=True))
    (span,) = gather(indexes, shard_no, ordinal, (recipe(*sources),))
    for row, (shard, sample) in enumerate(picks):
        have = [
            (int(indexes[shard].starts[column, sample]), int(indexes[shard].sizes[column, sample]))
            for source in sources
            if source in indexes[shard].fields
            for column in [indexes[shard].fields.index(source)]
            if indexes[shard].sizes[column, sample] >= 0
        ]
        assert (int(span.start[row]), int(span.size[row])) == (have[0] if have else (0, -1))


def test_keys_and_urls_are_text_per_row() -> None:
    """Keys and urls arrive as UTF-8 back to back with offsets; empty keys are kept."""
    shard_no, ordinal = np.array([1, 0, 1, 0], np.int32), np.array([1, 2, 0, 0])
    text = keys((ONE, TWO), shard_no, ordinal)
    assert (text.blob.decode(), text.offsets.tolist()) == ("ünïxa", [0, 0, 5, 6, 7])
    assert text.lengths.tolist() == [0, 5, 1, 1]
    urls = shard_urls(("s3://b/1", "s3://b/22"), shard_no)
    assert (urls.blob, urls.offsets.tolist()) == (b"s3://b/22s3://b/1s3://b/22s3://b/1", [0, 9, 17, 26, 34])
    assert keys((), np.zeros(0, np.int32), np.zeros(0, np.int64)).offsets.tolist() == [0]
