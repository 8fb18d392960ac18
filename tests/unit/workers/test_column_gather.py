"""Numbers at regular distances are copied into batches as a loop over rows would copy them."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import CacheUnavailable, Internal
from feedd.recipe.low_precision import widened
from feedd.workers.column_gather import gather
from feedd.workers.fixed_width import Plain
from feedd.workers.messages import ColumnMessage, FileMessage, GatherRequest
from feedd.workers.shards import MappedFiles
from tests.budget import budget

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ARENA_BYTES = 1 << 18
KINDS = (
    Plain("uint8", "uint8", 3),
    Plain("int64", "int64", 1),
    Plain("uint16", "uint16", 700),  # wide, and of an odd size
    Plain("uint64", "int64", 1),
    Plain("float64", "float32", 2),
    Plain("bfloat16", "float32", 5),
    Plain("float8_e4m3fn", "float32", 1),
)


def _column(plain: Plain, at: tuple[int, ...], step_bytes: tuple[int, ...]) -> ColumnMessage:
    return ColumnMessage("x", "codec", "{}", plain.encoding, at, step_bytes)


def _places(sizes: list[int], plains: list[Plain], gaps: list[int]) -> list[list[int]]:
    """Return where each column of each batch goes, with gaps between batches."""
    place, out_at = 0, []
    for size, gap in zip(sizes, gaps, strict=True):
        its: list[int] = []
        place += gap
        for plain in plains:
            its.append(place)
            place += -(-size * plain.out_bytes // 256) * 256
        out_at.append(its)
    return out_at


def _value(plain: Plain, data: bytes) -> bytes | None:
    """Return a value as a batch holds it; None: it does not fit."""
    raw = np.frombuffer(data, np.uint8)
    if plain.encoding in {"bfloat16", "float8_e4m3fn"}:
        return widened(raw, plain.encoding).tobytes()
    numbers = raw.view(plain.encoding)
    if plain.encoding == "uint64" and numbers.max() > np.iinfo(np.int64).max:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(plain.out).tobytes()


@settings(max_examples=budget(300), deadline=None)
@given(st.data())
def test_as_row_by_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Of several files and columns, with gaps and overlaps, batches of unequal sizes, and rows that are not there."""
    folder = tmp_path_factory.mktemp("files")
    source = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    plains = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    contents = [source.bytes(data.draw(st.integers(1, 20_000))) for _ in range(data.draw(st.integers(1, 3)))]
    files = []
    for number, content in enumerate(contents):
        path = folder / str(number)
        path.write_bytes(content)
        files.append(FileMessage(str(path), 0, len(content), f"s3://b/{number}"))
    columns = []
    for plain in plains:
        regular = data.draw(st.booleans())
        steps = [plain.width_bytes if regular else data.draw(st.integers(1, 40)) for _ in files]
        at = [data.draw(st.sampled_from([0, 64, 7])) for _ in files]
        columns.append(_column(plain, tuple(at), tuple(steps)))
    sizes = data.draw(
        st.lists(st.integers(1, 5), min_size=1, max_size=5) | st.lists(st.just(2), min_size=3, max_size=5)
    )
    rows = sum(sizes)
    beyond = data.draw(st.sampled_from([0, 0, 3]))
    file_no = source.integers(0, len(files), rows)
    both = list(zip(plains, columns, strict=True))
    counts = [
        min((len(content) - plain.width_bytes - column.at[n]) // column.step_bytes[n] + 1 for plain, column in both)
        for n, content in enumerate(contents)
    ]
    ordinal = np.array([source.integers(0, max(counts[n], 0) + 1 + beyond) for n in file_no.tolist()])
    are_consecutive = data.draw(st.booleans())
    told = _consecutive(data, sizes, file_no, ordinal) if are_consecutive else np.arange(rows)
    out_at = _places(sizes, plains, [data.draw(st.sampled_from([0, 0, 256])) for _ in sizes])
    rows_of = file_no[told].astype("<u2").tobytes() if len(files) > 1 else b"", ordinal[told].astype("<u4").tobytes()
    places = tuple(np.cumsum(sizes).tolist()), np.array(out_at, "<i8").tobytes()
    request = GatherRequest(1, tuple(files), 7, tuple(columns), *rows_of, *places, are_consecutive)
    arena = mmap.mmap(-1, ARENA_BYTES)
    if not are_consecutive and data.draw(st.booleans()):
        request = _with_rows_in(arena, request, int(np.min(out_at)))
    undone = set(gather(request, plains, MappedFiles(), arena).tolist())
    first = 0
    for size, its in zip(sizes, out_at, strict=True):
        expected: list[list[bytes | None]] = []
        for row in range(first, first + size):
            n, number = int(file_no[row]), int(ordinal[row])
            spans = [(plain, column.at[n] + number * column.step_bytes[n]) for plain, column in both]
            there = number < counts[n]
            expected.append(
                [
                    _value(plain, contents[n][start : start + plain.width_bytes]) if there else None
                    for plain, start in spans
                ]
            )
        good = all(cell is not None for cells in expected for cell in cells)
        assert undone.isdisjoint(range(first, first + size)) == good
        assert undone >= (set() if good else set(range(first, first + size)))
        for field, (plain, begin) in enumerate(zip(plains, its, strict=True)):
            if good:
                values = b"".join(cells[field] or b"" for cells in expected)
                assert arena[begin : begin + size * plain.out_bytes] == values
        first += size
    arena.close()


def _with_rows_in(arena: mmap.mmap, request: GatherRequest, at: int) -> GatherRequest:
    """Write the rows of a request to the arena."""
    rows = request.ordinal + request.file_no
    arena[at : at + len(rows)] = rows
    return msgspec.structs.replace(request, ordinal=b"", file_no=b"", rows_at=at)


def _consecutive(
    data: st.DataObject, sizes: list[int], file_no: NDArray[np.int64], ordinal: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Change rows so that those of each batch are successive samples; return each batch's first row."""
    ends = np.cumsum(sizes)
    told = np.concatenate(([0], ends[:-1])).astype(np.int64)
    for number, (start, size) in enumerate(zip(told.tolist(), sizes, strict=True)):
        if number and data.draw(st.booleans()):  # goes on where the batch before ended
            file_no[start], ordinal[start] = file_no[start - 1], ordinal[start - 1] + 1
        file_no[start : start + size] = file_no[start]
        ordinal[start : start + size] = ordinal[start] + np.arange(size)
    return told


@pytest.mark.parametrize(("first", "undone"), [(4, []), (5, [2, 3, 4, 5]), (8, [2, 3, 4, 5])])
def test_consecutive_rows_end_within_their_file(tmp_path: Path, first: int, undone: list[int]) -> None:
    """Of eight values, a batch of four may begin with the fifth, and with none after it."""
    path = tmp_path / "file"
    path.write_bytes(np.arange(8, dtype="<u8").tobytes())
    rows = {"ordinal": np.array([3, first], "<u4").tobytes(), "batch_ends": (2, 6), "are_consecutive": True}
    plain = KINDS[1]
    with mmap.mmap(-1, ARENA_BYTES) as arena:
        assert gather(_request(path, **rows), [plain], MappedFiles(), arena).tolist() == undone


def test_consecutive_values_may_overlap(tmp_path: Path) -> None:
    """Values of ten bytes that begin one byte after another do not lie back to back."""
    path, plain, content = tmp_path / "file", KINDS[5], bytes(range(64))
    path.write_bytes(content)
    request = _request(
        path,
        columns=(_column(plain, (0,), (1,)),),
        ordinal=np.array([0, 4], "<u4").tobytes(),
        are_consecutive=True,
    )
    with mmap.mmap(-1, ARENA_BYTES) as arena:
        assert not gather(request, [plain], MappedFiles(), arena).size
        for first, begin in ((0, 0), (4, 256)):
            values = [_value(plain, content[first + row : first + row + plain.width_bytes]) or b"" for row in range(2)]
            assert arena[begin : begin + 2 * plain.out_bytes] == b"".join(values)


def _request(path: Path, **changes: Any) -> GatherRequest:
    fields: dict[str, Any] = {
        "id": 1,
        "files": (FileMessage(str(path), 0, 64, "s3://b/0"),),
        "arena_id": 7,
        "columns": (_column(KINDS[1], (0,), (8,)),),
        "file_no": b"",
        "ordinal": np.arange(4, dtype="<u4").tobytes(),
        "batch_ends": (2, 4),
        "out_at": np.array([[0], [256]], "<i8").tobytes(),
    }
    return GatherRequest(**fields | changes)


@pytest.mark.parametrize("out_at", [[[-1], [0]], [[0], [ARENA_BYTES - 8]], [[1 << 62], [0]]])
def test_batches_outside_the_arena_are_refused(tmp_path: Path, out_at: list[list[int]]) -> None:
    """A wrong offset would write into another session's batch, or end the worker."""
    path = tmp_path / "0"
    path.write_bytes(bytes(64))
    arena = mmap.mmap(-1, ARENA_BYTES)
    with pytest.raises(Internal, match="expected batches in the arena"):
        gather(_request(path, out_at=np.array(out_at, "<i8").tobytes()), [KINDS[1]], MappedFiles(), arena)


@pytest.mark.parametrize(("at", "step"), [(-8, 8), (0, 0), (0, -8)])
def test_columns_that_are_none_are_refused(tmp_path: Path, at: int, step: int) -> None:
    """Values must ascend from the file's beginning on."""
    path = tmp_path / "0"
    path.write_bytes(bytes(64))
    request = _request(path, columns=(_column(KINDS[1], (at,), (step,)),))
    with pytest.raises(Internal, match="regular distances"):
        gather(request, [KINDS[1]], MappedFiles(), mmap.mmap(-1, ARENA_BYTES))


def test_a_file_that_became_shorter_is_unavailable(tmp_path: Path) -> None:
    """Its missing pages would end the worker."""
    path = tmp_path / "0"
    path.write_bytes(bytes(63))
    with pytest.raises(CacheUnavailable, match="63 bytes in all"):
        gather(_request(path), [KINDS[1]], MappedFiles(), mmap.mmap(-1, ARENA_BYTES))
