"""Numbers written as text: decoded for all rows at once, they are what each is alone, and so are the bad ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.codecs.codec_registry import make
from feedd.errors import BadSample
from feedd.recipe.recipe import parse_field, spec_of
from feedd.values import ObjectRef, ShardFile
from feedd.workers import calls as split
from feedd.workers.executor import Executor
from feedd.workers.fields import Field
from feedd.workers.messages import Decoded, DecodeRequest, request_decoder
from feedd.workers.work import DecodeTask, FieldWork

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_PAGE = 4096
_WRITTEN = (
    b"0 -0 +7 007 9223372036854775807 9223372036854775808 -9223372036854775808 1_000 1e3 1e39 -3.5e38 nan inf 0x10"
    b" 3.4028235677973366e38 cat 12\xc2\xb2 1.0000000000000000000000000000000000001"
)
_TEXTS = [*_WRITTEN.split(b" "), b"", b" 5\n", b"\t12 ", b"5 6", b"1" * 40, b"1" * 70]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files lie."""
    return tmp_path_factory.mktemp("numbers")


def _run(task: DecodeTask, rows: int) -> tuple[bytes, list[tuple[int, str]]]:
    """Return an arena of a page behind a request, and its bad rows."""
    request = request_decoder.decode(split.decode_packet(task, range(rows), 1).payload)
    assert isinstance(request, DecodeRequest)
    fd = os.memfd_create("arena")
    try:
        os.ftruncate(fd, _PAGE)
        executor = Executor()
        executor.attach(1, fd, _PAGE)
        answer, _ = executor.run(request)
        assert isinstance(answer, Decoded)
        executor.detach(1)
        return os.pread(fd, _PAGE, 0), [(row, reason) for row, _, reason in answer.bad]
    finally:
        os.close(fd)


def _decoded(folder: Path, texts: Sequence[bytes], recipe: str) -> tuple[NDArray[np.generic], list[tuple[int, str]]]:
    """Return the values of an arena behind one request for all texts, and the bad rows."""
    file = folder / "texts"
    file.write_bytes(b"".join(texts))
    ends = np.cumsum([len(text) for text in texts])
    sizes = np.array([len(text) for text in texts], np.int64)
    field = parse_field("n", recipe)
    dtype = np.dtype(spec_of(field).dtype)
    shard = ShardFile(ObjectRef("s3://bucket", "texts", int(ends[-1]), "etag"), str(file), 0)
    at = np.arange(len(texts)) * dtype.itemsize
    work = FieldWork(field, np.zeros(len(texts), np.int32), ends - sizes, sizes, at)
    task = DecodeTask((shard,), 1, 0, (work,), np.zeros(len(texts), np.uint64))
    page, bad = _run(task, len(texts))
    return np.frombuffer(page, dtype, len(texts)), bad


@pytest.mark.parametrize("recipe", ["int", "float", "float:float64"])
@given(texts=st.lists(st.sampled_from(_TEXTS) | st.from_regex(rb"[+-]?[0-9]{1,20}(\.[0-9]+)?", fullmatch=True)))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_many_at_once_are_what_each_is_alone(folder: Path, recipe: str, texts: list[bytes]) -> None:
    """Values agree to the bit, and bad rows have the codec's own reasons."""
    texts = [*texts, b"1"]
    values, bad = _decoded(folder, texts, recipe)
    codec = make(parse_field("n", recipe))
    reasons: list[tuple[int, str]] = []
    for row, text in enumerate(texts):
        alone = np.zeros((), values.dtype)
        try:
            codec.decode(memoryview(text), alone, 0)
        except BadSample as error:
            reasons.append((row, error.message))
        else:
            assert values[row].tobytes() == alone.tobytes(), text
    assert bad == reasons


def test_good_rows_need_no_way_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bulk takes is not decoded row by row as well; what it leaves is."""
    rows: list[int] = []
    alone = Field.decode

    def counted(self: Field, row: int, *others: Any) -> None:
        rows.append(row)
        alone(self, row, *others)

    monkeypatch.setattr(Field, "decode", counted)
    values, bad = _decoded(folder, [b"7", b"x", b" 8\n", b"0" * 40 + b"9", b"10"], "int")
    assert rows == [1, 3]
    assert values.tolist() == [7, 0, 8, 9, 10]
    assert [row for row, _ in bad] == [1]


@pytest.mark.parametrize("at", [[0, 32, 64], [64, 32, 0], [0, 40, 80], [0, 32, 96]])
def test_rows_of_a_field_lie_where_they_should_whatever_is_between(folder: Path, at: list[int]) -> None:
    """Rows that follow one another are one array; others are found one by one."""
    file = folder / "classes"
    file.write_bytes(b"201")
    recipe = parse_field("n", '{"decode": "int", "transforms": [{"op": "one_hot", "classes": 4}]}')
    shard = ShardFile(ObjectRef("s3://bucket", "classes", 3, "etag"), str(file), 0)
    work = FieldWork(recipe, np.zeros(3, np.int32), np.arange(3), np.ones(3, np.int64), np.array(at))
    page, bad = _run(DecodeTask((shard,), 1, 0, (work,), np.zeros(3, np.uint64)), 3)
    assert not bad
    dtype = np.dtype(spec_of(recipe).dtype)
    found = [np.frombuffer(page, dtype, 4, place).tolist() for place in at]
    assert found == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert np.count_nonzero(np.frombuffer(page, np.uint8)) == 3 * np.count_nonzero(np.ones(1, dtype).view(np.uint8))


def test_a_row_beyond_its_shard_is_bad_and_the_others_are_not(folder: Path) -> None:
    """What the file has behind the object, or before it, belongs to nobody."""
    path = folder / "behind"
    path.write_bytes(b"0123456789")
    shard = ShardFile(ObjectRef("s3://bucket", "behind", 4, "etag"), str(path), 2)
    start, size = np.array([0, 3, 4, -1, 2], np.int64), np.array([2, 2, 1, 1, 2], np.int64)
    work = FieldWork(parse_field("n", "int"), np.zeros(5, np.int32), start, size, np.arange(5) * 8)
    page, bad = _run(DecodeTask((shard,), 1, 0, (work,), np.zeros(5, np.uint64)), 5)
    assert [row for row, _ in bad] == [1, 2, 3]
    assert np.frombuffer(page, np.int64, 5).tolist() == [23, 0, 0, 0, 45]
