from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.errors import BadShard, Internal
from feedd.formats.format_spec import FormatSpec
from feedd.formats.missing_reasons import Why
from feedd.formats.tar import TarFormat
from feedd.recipe.recipe import parse_field
from feedd.values import ShardFile
from feedd.workers import calls as split
from feedd.workers import executor as arena_pages
from feedd.workers import index_columns as columns
from feedd.workers.executor import Executor
from feedd.workers.messages import (
    Attach,
    Decoded,
    Detach,
    Failed,
    Indexed,
    IndexRequest,
    Measured,
    Packet,
    Pinned,
    PinRequest,
    Prepare,
    encode,
    request_decoder,
)
from feedd.workers.work import DecodeTask, FieldWork
from tests.fakes.tars import shard_file, tar_bytes
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.formats.format_spec import ShardBytes
    from feedd.shard_index import ShardIndex
    from feedd.workers.messages import Answer

SAMPLES = [(f"{n}", {"cls": str(n).encode(), "txt": b"t" * n}) for n in range(5)]


@pytest.fixture
def shard(tmp_path: Path) -> ShardFile:
    """A shard that starts behind a page of something else."""
    return shard_file(tmp_path / "a.tar", tar_bytes(SAMPLES), data_at=4096)


@pytest.fixture
def arena() -> Iterator[int]:
    """A memfd of one page."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    yield fd
    os.close(fd)


def run(executor: Executor, packet: Packet | bytes) -> Answer:
    """Answer a packet that brings no descriptors back."""
    request = request_decoder.decode(packet.payload if isinstance(packet, Packet) else packet)
    assert not isinstance(request, Attach | Detach)
    answer, fds = executor.run(request)
    assert not fds
    return answer


def work(shard: ShardFile, recipe: str, field: str) -> FieldWork:
    """Return the work of one field, rows back to back from byte 0."""
    with open(shard.path, "rb") as file:  # noqa: PTH123 - a plain read
        index = TarFormat().index(memoryview(file.read()[shard.data_at :]), "u")
    column = index.fields.index(field)
    size = index.sizes[column]
    zeros = np.zeros(len(size), np.int32)
    return FieldWork(parse_field(field, recipe), zeros, index.starts[column], size, np.arange(len(size)) * 8)


def test_rows_are_decoded_where_the_task_says(shard: ShardFile, arena: int) -> None:
    """Row i lands at its own offset of the slot, and nothing else of the arena changes."""
    executor = Executor()
    executor.attach(1, arena, 4096)
    task = DecodeTask((shard,), 1, 256, (work(shard, "int", "cls"),), np.zeros(5, np.uint64))
    answer = run(executor, split.decode_packet(task, range(1, 4), 9))
    assert isinstance(answer, Decoded)
    assert (answer.id, answer.bad) == (9, ())
    page = np.frombuffer(os.pread(arena, 4096, 0), np.int64)
    assert page[32:37].tolist() == [0, 1, 2, 3, 0]
    assert np.count_nonzero(page) == 3
    executor.detach(1)


def test_bad_rows_are_named_and_the_others_decoded(shard: ShardFile, arena: int) -> None:
    """A missing field, a span beyond the shard and an undecodable value cost their own row only."""
    executor = Executor()
    executor.attach(1, arena, 4096)
    cls = work(shard, "int", "cls")
    cls.size[1] = -1
    cls.start[2] = shard.ref.size_bytes - 1
    cls.size[2] = 2
    cls.start[3] -= 511  # the dot of the member's name
    task = DecodeTask((shard,), 1, 0, (cls,), np.zeros(5, np.uint64))
    answer = run(executor, split.decode_packet(task, range(5), 1))
    assert isinstance(answer, Decoded)
    assert [(row, field) for row, field, _ in answer.bad] == [(1, 0), (2, 0), (3, 0)]
    assert all(reason.startswith("expected") for _, _, reason in answer.bad)
    assert np.frombuffer(os.pread(arena, 40, 0), np.int64)[[0, 4]].tolist() == [0, 4]
    executor.detach(1)


def test_rows_outside_the_arena_are_a_defect_and_write_nothing(shard: ShardFile, arena: int) -> None:
    """A task that points outside the arena, or at one that is not attached, fails as Internal."""
    executor = Executor()
    task = DecodeTask((shard,), 1, 4096, (work(shard, "int", "cls"),), np.zeros(5, np.uint64))
    for attached in (False, True):
        if attached:
            executor.attach(1, arena, 4096)
        answer = run(executor, split.decode_packet(task, range(5), 1))
        assert isinstance(answer, Failed)
        assert answer.kind == Internal.kind
    executor.detach(1)


def test_a_lost_or_short_file_is_the_caches_problem(shard: ShardFile, tmp_path: Path) -> None:
    """A file that is gone or shorter than its object fails the request as cache-unavailable, naming the url."""
    executor = Executor()
    gone = ShardFile(shard.ref, str(tmp_path / "gone"), 0)
    short = ShardFile(shard.ref, shard.path, 8192)
    for file in (gone, short):
        answer = run(executor, encode(IndexRequest(3, split.file_messages((file,))[0][0], "tar")))
        assert isinstance(answer, Failed)
        assert (answer.id, answer.kind, answer.object) == (3, "cache-unavailable", shard.ref.url)


def test_an_index_survives_its_transport(shard: ShardFile) -> None:
    """What the daemon unpacks equals what the format found."""
    executor = Executor()
    request = IndexRequest(1, split.file_messages((shard,))[0][0], "tar")
    answer, fds = executor.run(request)
    assert isinstance(answer, Indexed)
    index = columns.unpack(fds[0], answer)
    os.close(fds[0])
    assert [index.key(n) for n in range(5)] == list("01234")
    assert index.fields == ("cls", "txt")
    assert index.sizes.tolist() == [[1] * 5, [0, 1, 2, 3, 4]]


def test_why_fields_are_missing_survives_too(shard: ShardFile, tmp_path: Path) -> None:
    """A damaged record is bad for a reason, and the daemon knows it."""
    data = bytearray(tfrecord(example(a=[1]), example(a=[2])))
    data[-1] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    ref = replace(shard.ref, size_bytes=len(data))
    request = IndexRequest(1, split.file_messages((ShardFile(ref, str(tmp_path / "damaged"), 0),))[0][0], "tfrecord")
    answer, fds = Executor().run(request)
    assert isinstance(answer, Indexed)
    index = columns.unpack(fds[0], answer)
    os.close(fds[0])
    assert index.reasons is not None
    assert index.reasons.tolist() == [[0, Why.CHECKSUM]]
    assert index.starts.tolist()[0][1] == len(data) // 2 + 12


def test_numbers_of_an_index_are_checked_before_memory_is_taken() -> None:
    """A worker that a decoder's bug has taken over says what it likes."""
    fd = os.memfd_create("x")
    try:
        for count, key_bytes in ((1 << 40, 0), (0, 1 << 40), (-1, 0), (0, -2)):
            for regular in (False, True) if not key_bytes else (False,):
                strides = ((0, 4, 4),) if regular else (None,)
                said = Indexed(1, 0.0, ("cls",), count, key_bytes, strides=strides, is_regular=regular)
                with pytest.raises(Internal, match="expected a shard index of"):
                    columns.unpack(fd, said)
        for form, size_bytes in (((8, 0, 0), 16000), ((4, 0, 0), 8000), ((4, 1, 0), 4004), ((8, 1, 9), 8008)):
            os.truncate(fd, size_bytes)
            said = Indexed(1, 0.0, ("cls",), 1000, -1, strides=(None,), layouts=(form,))
            with pytest.raises(Internal, match=f"at most {size_bytes - 1} bytes, got {size_bytes}"):
                columns.unpack(fd, said, size_bytes - 1)
            assert columns.unpack(fd, said, size_bytes).sample_count == 1000
        for forms in ((), ((4, 0, 0),) * 2, ((3, 0, 0),), ((1 << 40, 0, 0),), ((-8, 0, 0),), ((4, 0, 1 << 62),)):
            with pytest.raises(Internal, match="expected the forms of 1 columns"):
                columns.unpack(fd, Indexed(1, 0.0, ("cls",), 1000, -1, strides=(None,), layouts=forms))
        said = Indexed(1, 0.0, ("cls",), 3, 0, strides=((0, 4, 4),) * 2, is_regular=True)
        with pytest.raises(Internal, match="expected strides of 1 fields, got 2"):
            columns.unpack(fd, said)
    finally:
        os.close(fd)


def test_values_that_could_still_change_are_refused() -> None:
    """A page that a worker cuts off while the daemon reads it would end the daemon by SIGBUS."""
    fd = os.memfd_create("x")
    os.write(fd, bytes(8))
    with pytest.raises(Internal, match="without seals"):
        columns.mapped(fd, 8)
    os.close(fd)
    fd = columns.pack_values(np.arange(3))
    assert np.frombuffer(columns.mapped(fd, 24), np.int64).tolist() == [0, 1, 2]
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 0)
    os.close(fd)


def test_measuring_never_fails_for_a_sample(shard: ShardFile) -> None:
    """Rows that cannot be measured are -1; the request as a whole is answered."""
    answer = run(Executor(), split.measure_packet((shard,), work(shard, "image", "cls"), range(5), 1))
    assert isinstance(answer, Measured)
    assert np.frombuffer(answer.shapes, np.int64).tolist() == [-1] * 15


def test_nothing_of_the_shard_stays_mapped(shard: ShardFile, arena: int) -> None:
    """After a task, good or bad, the shard's file is neither open nor mapped: eviction frees its space."""
    executor = Executor()
    executor.attach(1, arena, 4096)
    bad = work(shard, "json", "txt")
    task = DecodeTask(
        (shard,),
        1,
        0,
        (FieldWork(bad.recipe, bad.file_no, bad.start, bad.size, bad.out_at, bad.size[:, None]),),
        np.zeros(5, np.uint64),
    )
    run(executor, split.decode_packet(task, range(5), 1))
    run(executor, encode(PinRequest(1, split.file_messages((shard,))[0][0], 0, 50)))
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - procfs
        assert shard.path not in maps.read()
    executor.detach(1)


def test_pinning_reads_dtype_and_dimensions(tmp_path: Path) -> None:
    """The first array of a field pins dtype and ndim; what is no array fails as a bad sample."""
    import io  # noqa: PLC0415 - one use

    buffer = io.BytesIO()
    np.save(buffer, np.zeros((3, 4), ">i2"))
    file = shard_file(tmp_path / "x", buffer.getvalue())
    answer = run(Executor(), encode(PinRequest(1, split.file_messages((file,))[0][0], 0, file.ref.size_bytes)))
    assert isinstance(answer, Pinned)
    assert answer.params == '{"dtype":"int16","ndim":2}'
    failed = run(Executor(), encode(PinRequest(1, split.file_messages((file,))[0][0], 1, 20)))
    assert isinstance(failed, Failed)
    assert failed.kind == "bad-sample"


def test_an_arena_that_cannot_be_mapped_fails_decoding_not_the_worker(shard: ShardFile, arena: int) -> None:
    """A refused mapping is told by each decode into it, with the reason, until the arena is attached for good."""
    executor = Executor()
    executor.attach(1, arena, 1 << 20)
    task = DecodeTask((shard,), 1, 0, (work(shard, "int", "cls"),), np.zeros(5, np.uint64))
    answer = run(executor, split.decode_packet(task, range(5), 1))
    assert isinstance(answer, Failed)
    assert (answer.kind, "greater than file size" in answer.message) == (Internal.kind, True)
    executor.attach(1, arena, 4096)
    assert isinstance(run(executor, split.decode_packet(task, range(5), 1)), Decoded)
    executor.detach(1)


def test_pages_are_mapped_before_rows_are_written(shard: ShardFile, arena: int) -> None:
    """An arena's memory is not touched when it is attached, and in whole blocks where a request writes."""
    os.ftruncate(arena, 8 << 20)
    executor = Executor()
    executor.attach(1, arena, 8 << 20)
    assert os.fstat(arena).st_blocks == 0
    task = DecodeTask((shard,), 1, 4 << 20, (work(shard, "int", "cls"),), np.zeros(5, np.uint64))
    assert isinstance(run(executor, split.decode_packet(task, range(5), 9)), Decoded)
    assert 1 << 20 <= os.fstat(arena).st_blocks * 512 <= 2 << 20
    executor.detach(1)


def test_kernels_that_do_not_map_by_madvise(shard: ShardFile, arena: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 5.14 they know no such advice; decoding is the same."""
    monkeypatch.setattr(arena_pages, "_MADV_POPULATE_WRITE", 9999)
    executor = Executor()
    executor.attach(1, arena, 4096)
    task = DecodeTask((shard,), 1, 256, (work(shard, "int", "cls"),), np.zeros(5, np.uint64))
    assert isinstance(run(executor, split.decode_packet(task, range(5), 9)), Decoded)
    assert os.pread(arena, 40, 256) == np.arange(5).tobytes()
    executor.detach(1)


def test_a_view_left_behind_does_not_keep_an_arena_attached(arena: int) -> None:
    """Detaching goes on where something still holds a row; that view stays valid for as long as it lives."""
    executor = Executor()
    executor.attach(1, arena, 4096)
    row = memoryview(executor._arenas[1])[:8]
    executor.detach(1)
    assert executor._arenas == {}
    row[:] = b"\7" * 8
    assert os.pread(arena, 8, 0) == b"\7" * 8


def test_only_our_own_slow_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is none of ours is not looked for; one that cannot be imported is left to the row that needs it."""
    asked: list[str] = []

    def fail(name: str) -> None:
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr("feedd.workers.executor.importlib.import_module", fail)
    Executor().prepare(Prepare(("os", "../x", "picture", "text", "audio")))
    assert sorted(asked) == ["feedd.codecs.audio", "feedd.codecs.picture"]


def test_an_index_takes_only_so_much_memory(shard: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard whose index wants far more memory than its size explains fails alone; the worker goes on."""

    class Greedy(TarFormat):
        def index(self, data: ShardBytes, url: str) -> ShardIndex:
            bytearray(2 << 30)
            raise AssertionError("expected no memory for that, got some")

    executor = Executor(memory_bytes=512 << 20)
    request = IndexRequest(1, split.file_messages((shard,))[0][0], "tar")
    with monkeypatch.context() as patch:
        patch.setattr("feedd.formats.format_registry.find", lambda _: FormatSpec(Greedy()))
        answer = run(executor, encode(request))
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.object) == (BadShard.kind, shard.ref.url)
    assert "512MiB" in answer.message
    assert "decode.memory" in answer.hint
    answer, fds = executor.run(request)
    os.close(fds[0])
    assert isinstance(answer, Indexed)
