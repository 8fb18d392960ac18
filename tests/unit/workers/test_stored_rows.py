"""Large rows that lie in their shard as in a batch are copied without mapping any file; all others are decoded."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.flow.file_pipe import FilePipe
from feedd.recipe.recipe import parse_field
from feedd.values import ObjectRef, ShardFile
from feedd.workers import calls as split
from feedd.workers.executor import ArenaPages, Executor
from feedd.workers.fixed_width import LARGE_BYTES
from feedd.workers.messages import Decoded, Failed, request_decoder
from feedd.workers.shards import Shard
from feedd.workers.work import DecodeTask, FieldWork

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from feedd.workers.messages import Answer

_SHAPE = (3, LARGE_BYTES // 6 + 1)  # of uint16: a MiB
_ROW_BYTES = 2 * _SHAPE[0] * _SHAPE[1]
_ARENA_BYTES = 4 << 20
_SLOT_AT = 4096


def _numbers(seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 1 << 16, _SHAPE, np.uint16)


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def arena() -> Iterator[int]:
    """A memfd with room for a few rows."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, _ARENA_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shard is mapped, and no page of an arena in advance."""

    def refuse(*_: object) -> None:
        raise AssertionError("a large row was mapped")

    monkeypatch.setattr(Shard, "whole", refuse)
    monkeypatch.setattr(ArenaPages, "expect", refuse)


def _decoded(
    folder: Path, arena: int, samples: list[bytes], recipe: str, *, cut: int = 0, at: int = 0, lost: int = 0
) -> Answer:
    """Decode samples that lie one after another in a shard, from a page on.

    Args:
        folder: for the shard.
        arena: the memfd.
        samples: the samples.
        recipe: of the only field.
        cut: bytes that the file lacks.
        at: where the rows begin in the slot.
        lost: bytes of the last sample that lie behind the object.
    """
    whole = b"".join(samples)
    path = folder / "shard"
    path.write_bytes(bytes(4096) + whole[: len(whole) - cut])
    ref = ObjectRef("s3://b", "shard", len(whole) - lost, "e")
    sizes = np.array([len(one) for one in samples])
    rows = np.arange(len(samples))
    work = FieldWork(
        parse_field("npy", recipe), np.zeros(len(samples), np.int32), np.cumsum(sizes) - sizes, sizes, rows * _ROW_BYTES
    )
    task = DecodeTask((ShardFile(ref, str(path), 4096),), 1, _SLOT_AT + at, (work,), np.zeros(len(samples), np.uint64))
    executor = Executor()
    executor.attach(1, arena, _ARENA_BYTES)
    try:
        packet = split.decode_packet(task, range(len(samples)), 9)
        answer, _ = executor.run(request_decoder.decode(packet.payload))
        return answer
    finally:
        executor.detach(1)


def _rows(arena: int, count: int) -> NDArray[Any]:
    data = os.pread(arena, count * _ROW_BYTES, _SLOT_AT)
    return np.frombuffer(data, np.uint16).reshape(count, *_SHAPE)


@pytest.mark.usefixtures("no_maps")
def test_stored_rows_are_copied_without_a_mapping(tmp_path: Path, arena: int) -> None:
    """Of .npy arrays and of plain numbers; nothing else of the arena changes."""
    arrays = [_numbers(seed) for seed in range(2)]
    for recipe, samples in (
        (f"npy:uint16:{_SHAPE[0]},{_SHAPE[1]}", [_npy(one) for one in arrays]),
        (f"tensor:uint16:{_SHAPE[0]},{_SHAPE[1]}", [one.tobytes() for one in arrays]),
    ):
        os.ftruncate(arena, 0)
        os.ftruncate(arena, _ARENA_BYTES)
        answer = _decoded(tmp_path, arena, samples, recipe)
        assert isinstance(answer, Decoded)
        assert not answer.bad
        assert (_rows(arena, 2) == arrays).all()
        assert not any(os.pread(arena, _SLOT_AT, 0))
        assert not any(os.pread(arena, _ARENA_BYTES, _SLOT_AT + 2 * _ROW_BYTES))


def test_rows_that_are_stored_otherwise_are_decoded(tmp_path: Path, arena: int) -> None:
    """Other byte and memory orders give the same numbers; what fits no recipe is bad, and the row after it is not."""
    numbers = _numbers(1)
    samples = [
        _npy(np.asfortranarray(numbers)),
        _npy(numbers.astype(">u2")),
        _npy(numbers.astype(np.int16)),
    ]
    answer = _decoded(tmp_path, arena, samples, f"npy:uint16:{_SHAPE[0]},{_SHAPE[1]}")
    assert isinstance(answer, Decoded)
    assert [row for row, _, _ in answer.bad] == [2]
    assert (_rows(arena, 2) == numbers).all()
    longer = [_npy(numbers) + b"?", _npy(numbers.T), _npy(numbers)]
    answer = _decoded(tmp_path, arena, longer, f"npy:uint16:{_SHAPE[0]},{_SHAPE[1]}")
    assert isinstance(answer, Decoded)
    assert [row for row, _, _ in answer.bad] == [0, 1]
    assert (_rows(arena, 3)[2] == numbers).all()


@pytest.mark.parametrize("codec", ["npy", "tensor"])
def test_a_row_that_ends_behind_its_object_is_bad(tmp_path: Path, arena: int, codec: str) -> None:
    """What lies behind an object in its file is never read as a part of it."""
    one = _npy(_numbers(0)) if codec == "npy" else _numbers(0).tobytes()
    answer = _decoded(tmp_path, arena, [one], f"{codec}:uint16:{_SHAPE[0]},{_SHAPE[1]}", lost=1)
    assert isinstance(answer, Decoded)
    assert [row for row, _, _ in answer.bad] == [0]
    assert not any(os.pread(arena, _ARENA_BYTES, 0))


def test_a_shard_file_that_is_too_short_is_unavailable(tmp_path: Path, arena: int) -> None:
    """It is fetched again, as after an error of its disk."""
    answer = _decoded(tmp_path, arena, [_npy(_numbers(0))], f"npy:uint16:{_SHAPE[0]},{_SHAPE[1]}", cut=5000)
    assert isinstance(answer, Failed)
    assert answer.kind == "cache-unavailable"
    assert f"of {_ROW_BYTES} bytes at 128" in answer.message


def test_a_large_row_outside_the_arena_is_a_defect(tmp_path: Path, arena: int) -> None:
    """Nothing is written, and the arena keeps its size."""
    recipe = f"npy:uint16:{_SHAPE[0]},{_SHAPE[1]}"
    answer = _decoded(tmp_path, arena, [_npy(_numbers(0))], recipe, at=_ARENA_BYTES - _ROW_BYTES)
    assert isinstance(answer, Failed)
    assert answer.kind == "internal"
    assert os.fstat(arena).st_size == _ARENA_BYTES


def test_a_pipe_copies_what_the_source_has(tmp_path: Path) -> None:
    """It says how much that was, and is empty afterwards."""
    (tmp_path / "from").write_bytes(bytes(range(256)) * 9000)
    with FilePipe() as pipe, (tmp_path / "from").open("rb") as source, (tmp_path / "to").open("wb+") as target:
        assert pipe.copy((source.fileno(), 1), (target.fileno(), 7), 2_000_000) == 2_000_000
        assert pipe.copy((source.fileno(), 256 * 9000 - 3), (target.fileno(), 0), 7) == 3
        target.seek(0)
        assert target.read(9) == b"\xfd\xfe\xff\0\0\0\0\1\2"
        assert target.seek(0, os.SEEK_END) == 2_000_007
