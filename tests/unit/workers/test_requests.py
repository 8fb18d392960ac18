"""A request names only the files that its rows need."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from feedd.recipe.recipe import parse_field
from feedd.values import ObjectRef, ShardFile
from feedd.workers.calls import GatherCall
from feedd.workers.messages import MESSAGE_BYTES_MAX, Gathered, GatherRequest, request_decoder
from feedd.workers.work import Column, GatherTask


def _task(file_no: list[int], batch_rows: int) -> GatherTask:
    files = tuple(ShardFile(ObjectRef("s3://b", f"{number}", 1000, "e"), f"/cache/{number}", 0) for number in range(4))
    rows = len(file_no)
    batches = rows // batch_rows
    recipe = parse_field("x", '{"decode": "tensor", "dtype": "int64", "shape": [1]}')
    column = Column(recipe, np.arange(4) * 10, np.full(4, 8))
    ends = np.arange(1, batches + 1) * batch_rows
    out_at = np.arange(batches).reshape(-1, 1) * 64
    return GatherTask(files, 1, (column,), np.array(file_no), np.arange(rows), ends, out_at)


def test_files_are_numbered_anew() -> None:
    """Each request has its own files, with what is told of them; of one file no row says which."""
    call = GatherCall(_task([2, 2, 3, 0], 2))
    first, second = (request_decoder.decode(call.packet(range(at, at + 1), at).payload) for at in range(2))
    assert isinstance(first, GatherRequest)
    assert isinstance(second, GatherRequest)
    assert [file.path for file in first.files] == ["/cache/2"]
    assert (first.columns[0].at, first.file_no, first.batch_ends) == ((20,), b"", (2,))
    assert [file.path for file in second.files] == ["/cache/0", "/cache/3"]
    assert second.columns[0].at == (0, 30)
    assert np.frombuffer(second.file_no, "<u2").tolist() == [1, 0]
    assert np.frombuffer(second.ordinal, "<u4").tolist() == [2, 3]
    assert np.frombuffer(second.out_at, "<i8").tolist() == [64]


def test_requests_fit_a_packet() -> None:
    """As many batches are sent together as fit; large ones are sent in parts, to where each part belongs."""
    for batch_rows in (1, 256, 1000, 20_000):
        call = GatherCall(_task([0, 1, 2, 3] * 10_000, batch_rows))
        payload = call.packet(range(min(call.request_units, call.rows)), 1).payload
        assert MESSAGE_BYTES_MAX // 2 < len(payload) <= MESSAGE_BYTES_MAX
    assert call.rows == 10
    parts = [request_decoder.decode(call.packet(range(at, at + 1), 1).payload) for at in range(call.rows)]
    assert [np.frombuffer(part.out_at, "<i8").tolist() for part in parts] == [
        [batch * 64 + part * 4096 * 8] for batch in range(2) for part in range(5)
    ]
    assert [part.batch_ends for part in parts] == [(4096,), (4096,), (4096,), (4096,), (3616,)] * 2
    assert [int(np.frombuffer(part.ordinal, "<u4")[0]) for part in parts] == [
        batch * 20_000 + part * 4096 for batch in range(2) for part in range(5)
    ]


def test_consecutive_rows_are_told_by_their_batchs_first() -> None:
    """Batches of successive samples take no bytes a row; one that jumps, or changes its file, is told row by row."""
    call = GatherCall(_task([2] * 512 + [3] * 512, 256))
    request = request_decoder.decode(call.packet(range(1, 4), 1).payload)
    assert isinstance(request, GatherRequest)
    assert request.are_consecutive
    assert np.frombuffer(request.file_no, "<u2").tolist() == [0, 1, 1]
    assert np.frombuffer(request.ordinal, "<u4").tolist() == [256, 512, 768]
    assert request.batch_ends == (256, 512, 768)
    jumps = _task([2] * 1024, 256)
    jumps.ordinal[300:] += 1
    for task in (jumps, _task([2] * 600 + [3] * 424, 256)):
        told = request_decoder.decode(GatherCall(task).packet(range(4), 1).payload)
        assert not told.are_consecutive
        assert len(told.ordinal) == 4 * 1024


def test_undone_rows_are_counted_from_the_tasks_beginning() -> None:
    """A worker counts from its request's first row."""
    call = GatherCall(_task([0] * 8, 2))
    call.give_up(range(3, 4), "SIGBUS")
    call.give_up(range(1, 2), "SIGBUS")
    assert call.undone.tolist() == [2, 3, 6, 7]


def test_a_task_may_tell_the_first_row_of_each_batch_alone() -> None:
    """The request is the one for the same rows told one by one, and its answer names rows alike."""
    rows = _task([2] * 1024, 256)
    firsts = replace(rows, file_no=rows.file_no[::256], ordinal=rows.ordinal[::256], are_firsts=True)
    calls = GatherCall(rows), GatherCall(firsts)
    one, other = (call.packet(range(1, 4), 1).payload for call in calls)
    assert one == other
    for call in calls:
        call.accept(range(1, 4), Gathered(1, 0.0, np.array([0, 300], "<i4").tobytes()), [])
        assert call.undone.tolist() == [256, 556]


@pytest.mark.parametrize("file_count", [1, 2])
def test_rows_of_a_run_lie_where_its_batches_will(file_count: int) -> None:
    """A request says where, each time anew; rows that take more room than their batches travel in the request."""
    ordinal = np.arange(1024)[::-1]
    task = replace(_task([number % file_count for number in range(1024)], 256), ordinal=ordinal, in_order=True)
    column, out_at = task.columns[0], task.out_at * 32 + 64
    small = replace(column, recipe=parse_field("x", '{"decode": "tensor", "dtype": "int32", "shape": [1]}'))
    arena_fd = os.memfd_create("arena")
    try:
        call = GatherCall(replace(task, out_at=out_at), arena_fd)
        assert call.request_units > call.rows
        for _ in range(2):
            os.pwrite(arena_fd, bytes(1 << 14), 0)
            request = request_decoder.decode(call.packet(range(1, 4), 1).payload)
            assert isinstance(request, GatherRequest)
            assert (request.rows_at, request.ordinal, request.file_no) == (64 + 2048, b"", b"")
            rows = np.frombuffer(os.pread(arena_fd, 4 * 768, request.rows_at), "<u4")
            assert rows.tolist() == ordinal[256:].tolist()
            told = np.frombuffer(os.pread(arena_fd, 2 * 768, request.rows_at + 4 * 768), "<u2")
            assert told.tolist() == [number % file_count for number in range(256, 1024)]
            assert os.pread(arena_fd, request.rows_at, 0) == bytes(request.rows_at)
        for other in (
            GatherCall(replace(task, out_at=out_at)),
            GatherCall(replace(task, out_at=out_at, in_order=False), arena_fd),
            GatherCall(replace(task, columns=(small,)), arena_fd),
            GatherCall(replace(task, out_at=task.out_at // 64), arena_fd),
        ):
            request = request_decoder.decode(other.packet(range(3), 1).payload)
            assert (request.rows_at, len(request.ordinal)) == (-1, 4 * request.batch_ends[-1])
        large = replace(_task([0] * 10_000, 5000), ordinal=np.arange(10_000)[::-1], in_order=True)
        assert request_decoder.decode(GatherCall(large, arena_fd).packet(range(1), 1).payload).rows_at < 0  # parts
    finally:
        os.close(arena_fd)
