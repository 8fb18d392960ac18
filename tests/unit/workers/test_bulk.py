"""Plain copies of many rows at once: the same bytes as row by row, and nothing kept longer than it is read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadSample
from feedd.recipe.label_recipes import number_at
from feedd.recipe.recipe import parse_field, spec_of
from feedd.values import ObjectRef, ShardFile
from feedd.workers import bulk
from feedd.workers import calls as split
from feedd.workers.executor import Executor
from feedd.workers.fields import Field
from feedd.workers.fixed_width import chunk_rows, plain_numbers
from feedd.workers.messages import MESSAGE_BYTES_MAX, Decoded, DecodeRequest, Failed, encode, request_decoder
from feedd.workers.shards import REST_S, MappedFiles
from feedd.workers.work import DecodeTask, FieldWork
from tests.budget import budget
from tests.fakes.tars import shard_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.values import FieldRecipe
    from feedd.workers.fixed_width import Plain
    from feedd.workers.messages import Answer

ARENA_BYTES = 1 << 20
RECIPES = {
    "tokens": replace(parse_field("x", "tokens:uint16:5"), encoding="uint16[]"),
    "tensor": parse_field("x", "tensor:float32:2,3"),
    "padded": parse_field("x", '{"decode": "tokens", "dtype": "uint16", "count": 5, "last": "pad", "fill": 7}'),
    "int of uint64": replace(parse_field("x", "int"), encoding="uint64"),
    "int of int16": replace(parse_field("x", "int"), encoding="int16"),
    "float of float64": replace(parse_field("x", "float"), encoding="float64"),
    "float of bfloat16": replace(parse_field("x", "float"), encoding="bfloat16"),
    "tensor of bfloat16": replace(parse_field("x", "tensor:float32:3"), encoding="bfloat16[3]"),
    "bits of bfloat16": replace(parse_field("x", "tensor:uint16:3"), encoding="bfloat16[3]"),
    "tensor of float8": replace(parse_field("x", "tensor:float32:2,2"), encoding="float8_e4m3fn[2,2]"),
    "int of bool": replace(parse_field("x", "int"), encoding="bool"),
}


@pytest.fixture
def executor() -> Iterator[Executor]:
    """One with an arena attached."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, ARENA_BYTES)
    made = Executor()
    made.attach(1, fd, ARENA_BYTES)
    os.close(fd)
    yield made
    made.rest()
    made.detach(1)


def task(files: tuple[ShardFile, ...], recipe: FieldRecipe, spans: np.ndarray) -> DecodeTask:
    """Return the task of rows (file, start, size), back to back from byte 64 of the slot."""
    spec = spec_of(recipe)
    width = int(np.prod(spec.shape, dtype=int)) * np.dtype(spec.dtype).itemsize
    out_at = 64 + np.arange(len(spans)) * width
    work = FieldWork(recipe, spans[:, 0].astype(np.int32), spans[:, 1], spans[:, 2], out_at)
    return DecodeTask(files, 1, 128, (work,), np.zeros(len(spans), np.uint64))


def request(of: DecodeTask, rows: range) -> DecodeRequest:
    """Return what a worker gets."""
    made = request_decoder.decode(split.decode_packet(of, rows, 1).payload)
    assert isinstance(made, DecodeRequest)
    return made


def run(executor: Executor, of: DecodeTask, rows: range) -> Answer:
    """Have rows decoded."""
    answer, fds = executor.run(request(of, rows))
    assert not fds
    return answer


def bulk_plain(recipe: FieldRecipe) -> Plain:
    """Return what is copied for a row."""
    plain = plain_numbers(recipe)
    assert plain is not None
    return plain


def one_by_one(executor: Executor, of: DecodeTask) -> list[tuple[int, str]]:
    """Decode each row alone, which is never done in bulk; return the bad ones."""
    bad: list[tuple[int, str]] = []
    for row in range(len(of.seeds)):
        answer = run(executor, of, range(row, row + 1))
        assert isinstance(answer, Decoded)
        bad += [(row, reason) for _, _, reason in answer.bad]
    return bad


@settings(max_examples=budget(120), deadline=None)
@given(name=st.sampled_from(list(RECIPES)), seed=st.integers(0, 1 << 30), rows=st.integers(2, 60))
def test_many_rows_at_once_are_as_one_by_one(
    name: str, seed: int, rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes, and which rows are bad and why, do not depend on how many rows a request has."""
    draws = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("bulk")
    data = [draws.integers(0, 256, 400, np.uint8).tobytes() for _ in range(3)]
    files = tuple(shard_file(folder / str(n), part, data_at=4096 * n) for n, part in enumerate(data))
    recipe = RECIPES[name]
    plain = plain_numbers(recipe)
    width = plain.width_bytes if plain is not None else 1
    spans = np.stack([draws.integers(0, 3, rows), draws.integers(0, 401 - width, rows), np.full(rows, width)], axis=1)
    for row in draws.integers(0, rows, 2 * (seed % 2)).tolist():
        spans[row, 1:] = [(-1, -1), (0, width - 1), (398, width + 4), (400, width), (0, width + 1)][row % 5]
        spans[row, 1] = max(spans[row, 1], 0)
    of = task(files, recipe, spans)
    results = []
    for whole in (True, False):
        executor = Executor()
        fd = os.memfd_create("arena")
        os.ftruncate(fd, ARENA_BYTES)
        executor.attach(1, fd, ARENA_BYTES)
        if whole:
            with pytest.MonkeyPatch.context() as patch:
                if seed % 3 == 1:  # as rows are that are long
                    patch.setattr(bulk, "_GATHERED_BYTES_MAX", 0)
                answer = run(executor, of, range(rows))
            assert isinstance(answer, Decoded)
            bad = [(row, reason) for row, _, reason in answer.bad]
        else:
            bad = one_by_one(executor, of)
        out = os.pread(fd, ARENA_BYTES, 0)
        executor.rest()
        executor.detach(1)
        os.close(fd)
        results.append((bad, out))
    dropped = {row for row, _ in results[0][0]}
    assert results[0][0] == results[1][0]
    size = len(results[0][1]) if not dropped else 0  # what bad rows leave behind is anybody's guess
    assert results[0][1][:size] == results[1][1][:size]
    for row in set(range(rows)) - dropped:
        at, step = 128 + int(of.fields[0].out_at[row]), int(of.fields[0].out_at[1] - of.fields[0].out_at[0])
        assert results[0][1][at : at + step] == results[1][1][at : at + step]


@settings(max_examples=budget(60), deadline=None)
@given(
    codec=st.sampled_from(["int", "float"]),
    numbers=st.lists(st.integers(-(1 << 60), (1 << 60) - 1) | st.integers(-9, 9), min_size=2, max_size=40),
    lacking=st.sets(st.integers(0, 39), max_size=2),
    inside=st.sets(st.integers(0, 39), max_size=2),
)
def test_labels_are_written_without_their_shards(
    codec: str, numbers: list[int], lacking: set[int], inside: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Numbers that lie in no file are the same at once as one by one; the file is opened for rows that lie in it."""
    recipe = replace(parse_field("x", codec), encoding="int64")
    starts = number_at(np.array(numbers, np.int64))
    spans = np.stack([np.zeros(len(numbers), np.int64), starts, np.full(len(numbers), 8)], axis=1)
    for row in range(len(numbers)):
        if row in lacking:
            spans[row, 2] = -1
        elif row in inside:
            spans[row, 1] = row
    file = shard_file(tmp_path_factory.mktemp("labels") / "a", bytes(range(64)))
    reads = bool({row for row in range(len(numbers)) if row in inside | lacking})
    if not reads:
        Path(file.path).unlink()  # nobody asks for it
    executor = Executor()
    fd = os.memfd_create("arena")
    os.ftruncate(fd, ARENA_BYTES)
    executor.attach(1, fd, ARENA_BYTES)
    of = task((file,), recipe, spans)
    answer = run(executor, of, range(len(numbers)))
    assert isinstance(answer, Decoded)
    assert {row for row, _, _ in answer.bad} == {row for row in range(len(numbers)) if row in lacking}
    dtype = np.dtype(spec_of(recipe).dtype)
    found = np.frombuffer(os.pread(fd, len(numbers) * dtype.itemsize, 128 + 64), dtype)
    for row, number in enumerate(numbers):
        if row not in lacking:
            expected = int.from_bytes(bytes(range(row, row + 8)), "little") if row in inside else number
            assert found[row] == dtype.type(expected)
    executor.rest()
    executor.detach(1)
    os.close(fd)


def mapped(path: str) -> bool:
    """Whether this process maps the file."""
    return path in Path("/proc/self/maps").read_text()


def all_of(file: ShardFile, rows: int = 4) -> DecodeTask:
    """Return a task of the first rows of a shard of tokens."""
    spans = np.array([(0, 10 * row, 10) for row in range(rows)])
    return task((file,), RECIPES["tokens"], spans)


def test_mappings_are_kept_while_they_are_read_and_no_longer(tmp_path: Path, executor: Executor) -> None:
    """A shard stays mapped from request to request; resting, or other requests for a while, let go of it."""
    one, other = (shard_file(tmp_path / name, bytes(range(200))) for name in "ab")
    kept = [executor.keeps]
    run(executor, all_of(one), range(4))
    assert [*kept, executor.keeps] == [False, True]
    assert mapped(one.path)
    executor.rest()
    assert not mapped(one.path)
    run(executor, all_of(one), range(4))
    for _ in range(200):
        run(executor, all_of(other), range(4))
    assert (mapped(one.path), mapped(other.path)) == (False, True)


def test_a_single_row_is_read_by_a_call(tmp_path: Path, executor: Executor) -> None:
    """A row that may have killed a worker is not read through a mapping, where an I/O error kills."""
    file = shard_file(tmp_path / "a", bytes(range(200)))
    answer = run(executor, all_of(file), range(1))
    assert isinstance(answer, Decoded)
    assert not answer.bad
    assert not mapped(file.path)


def test_another_file_of_the_same_name_is_read_anew(tmp_path: Path, executor: Executor) -> None:
    """Where a shard was fetched again, or another took its name, no byte of the former is seen."""
    file = shard_file(tmp_path / "a", bytes(200))
    run(executor, all_of(file), range(4))
    Path(file.path).unlink()
    shard_file(tmp_path / "a", bytes([9]) * 200)
    run(executor, all_of(file), range(4))
    at = 128 + 64
    assert bytes(executor._arenas[1][at : at + 40]) == bytes([9]) * 40


def test_a_lost_or_short_file_is_the_caches_problem(tmp_path: Path, executor: Executor) -> None:
    """A file that is gone, or shorter than its object, fails the request as a whole and names the object."""
    file = shard_file(tmp_path / "a", bytes(200))
    run(executor, all_of(file), range(4))
    Path(file.path).unlink()
    short = shard_file(tmp_path / "b", bytes(200))
    os.truncate(short.path, 100)
    for lost in (file, short):
        answer = run(executor, all_of(lost), range(4))
        assert isinstance(answer, Failed)
        assert (answer.kind, answer.object) == ("cache-unavailable", lost.ref.url)


def test_rows_outside_the_arena_write_nothing(tmp_path: Path, executor: Executor) -> None:
    """A row that would lie outside is a defect of ours, said as one."""
    file = shard_file(tmp_path / "a", bytes([5]) * 200)
    for out_at in (-200, ARENA_BYTES - 128 - 9):
        good = all_of(file)
        places = np.array([0, 10, 20, out_at])
        work = replace(good.fields[0], out_at=places)
        answer = run(executor, replace(good, fields=(work,)), range(4))
        assert isinstance(answer, Failed)
        assert answer.kind == "internal"
    assert not any(executor._arenas[1][:])


@pytest.mark.parametrize("places", ["one after another", "two batches", "anywhere"])
def test_rows_of_kilobytes_are_gathered_in_pieces(tmp_path: Path, executor: Executor, places: str) -> None:
    """Rows of several pieces and files, to the last byte of each, come where they belong; bad ones are named."""
    draws = np.random.default_rng(4)
    data = [draws.integers(0, 256, 5000, np.uint8).tobytes() for _ in range(2)]
    files = tuple(shard_file(tmp_path / str(n), part, data_at=4096 * n) for n, part in enumerate(data))
    rows, width = 400, 2 * 1023  # 128 rows make a piece
    spans = np.stack([draws.integers(0, 2, rows), draws.integers(0, 5001 - width, rows), np.full(rows, width)], axis=1)
    spans[:4, 1:] = (0, width), (5000 - width, width), (5001 - width, width), (7, width - 2)
    of = task(files, parse_field("x", "tokens:uint16:1023"), spans)
    out_at = of.fields[0].out_at
    if places == "anywhere":
        out_at = draws.permutation(out_at)
    elif places == "two batches":
        out_at = np.concatenate([out_at[300:], out_at[:300]])
    of = replace(of, fields=(replace(of.fields[0], out_at=out_at),))
    answer = run(executor, of, range(rows))
    assert isinstance(answer, Decoded)
    assert [row for row, _, _ in answer.bad] == [2, 3]
    for row, (file, start, _) in enumerate(spans.tolist()):
        at = 128 + int(of.fields[0].out_at[row])
        if row not in {2, 3}:
            assert executor._arenas[1][at : at + width] == data[file][start : start + width]


def test_a_row_by_itself_brings_its_own_file_only() -> None:
    """It is sent when nothing larger fits into a message; a few files go along with several rows as they are."""
    files = tuple(ShardFile(ObjectRef("s3://b", f"k{n}", 64, "e"), f"/f{n}", 0) for n in range(3))
    of = task(files, parse_field("x", "int"), np.array([[0, 0, 8], [2, 8, 8]]))
    assert [file.path for file in request(of, range(2)).files] == ["/f0", "/f1", "/f2"]
    alone = request(of, range(1, 2))
    assert [file.path for file in alone.files] == ["/f2"]
    assert np.frombuffer(alone.fields[0].file_no, "<i4").tolist() == [0]


def test_rows_of_more_files_than_are_kept(tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stay mapped while they are read, however few are kept; those that hold no good row are not even opened."""
    monkeypatch.setattr("feedd.workers.shards._FILES_MAX", 1)
    data = [bytes([number]) * 40 for number in range(9)]
    files = tuple(shard_file(tmp_path / str(n), part, data_at=4096 * (n % 3)) for n, part in enumerate(data))
    Path(files[4].path).unlink()
    spans = np.array([(row % 9, row % 30, 10) for row in range(90)])
    spans[spans[:, 0] == 4, 2] = 9
    of = task(files, RECIPES["tokens"], spans)
    got = request(of, range(90))
    done = bulk.copy_rows(
        bulk_plain(RECIPES["tokens"]), got.fields[0], got.files, executor._cached_files, (executor._arenas[1], 128)
    )
    assert done.tolist() == [row % 9 != 4 for row in range(90)]
    assert len(executor._cached_files) == 1
    for row in np.flatnonzero(done).tolist():
        at = 128 + int(of.fields[0].out_at[row])
        assert executor._arenas[1][at : at + 10] == bytes([row % 9]) * 10


def test_an_answer_that_names_every_row_fits_a_packet(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all rows of a large request are bad, each is named, with all of the reason as long as there is room."""
    file = shard_file(tmp_path / "a", bytes(200))
    rows = chunk_rows([RECIPES["tokens"]], 32, 1 << 20)
    assert rows == 1024
    of = task((file,), RECIPES["tokens"], np.array([(0, 0, 9)] * rows))
    answer = run(executor, of, range(rows))
    assert isinstance(answer, Decoded)
    assert [row for row, _, _ in answer.bad] == list(range(rows))
    assert {reason for _, _, reason in answer.bad} == {"expected 10 bytes for uint16[5], got 9"}

    def refuse(*_: object) -> None:
        raise BadSample("\U0001f600" * 400)

    monkeypatch.setattr(Field, "decode", refuse)  # with the longest reasons there are
    longest = run(executor, of, range(rows))
    assert isinstance(longest, Decoded)
    assert [row for row, _, _ in longest.bad] == list(range(rows))
    assert longest.bad[0][2] == "\U0001f600" * 300
    assert len(encode(longest)) <= MESSAGE_BYTES_MAX


def test_requests_have_many_rows_only_where_all_fields_are_plain() -> None:
    """A field that takes decoding keeps requests small; wide rows do as well."""
    tokens, text = RECIPES["tokens"], parse_field("t", "str")
    assert chunk_rows([tokens, text], 32, 4096) == 32
    assert chunk_rows([tokens], 32, 4096) == 1024
    assert chunk_rows([parse_field("x", "tensor:float32:3,224,224")], 32, 4096) == 32


def test_rows_are_sent_in_equal_parts() -> None:
    """No request of a few rows follows large ones: each costs as much as hundreds of rows do."""
    tokens = parse_field("x", "tokens:uint16:2049")
    assert chunk_rows([tokens], 32, 2048) == 1024
    assert chunk_rows([tokens], 32, 1026) == 513
    assert chunk_rows([tokens], 32, 256) == 256
    assert chunk_rows([tokens], 32, 5) == 32


@pytest.mark.parametrize("fields", [1, 2, 3, 4, 8, 40])
def test_a_large_request_fits_a_packet(tmp_path: Path, fields: int) -> None:
    """However many fields there are, no request has to be taken back and divided."""
    recipe = parse_field("x", "tokens:uint16:1")
    rows = chunk_rows([recipe] * fields, 32, 1 << 20)
    of = task((shard_file(tmp_path / "a", bytes(200)),), recipe, np.array([(0, 0, 2)] * rows))
    packet = split.decode_packet(replace(of, fields=of.fields * fields), range(rows), 1)
    assert len(packet) <= MESSAGE_BYTES_MAX


def test_files_go_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping that was not read for a while goes with the next request, however few there were."""
    now_s = 100.0
    monkeypatch.setattr("feedd.workers.shards.time.monotonic", lambda: now_s)
    kept = MappedFiles()
    kept.begin()
    kept.get(split.file_messages((shard_file(tmp_path / "a", bytes(200)),))[0][0])
    now_s += REST_S / 2
    kept.begin()
    assert len(kept) == 1
    now_s += REST_S
    kept.begin()
    assert len(kept) == 0
