"""A conversion tells the index of the table that it wrote, if that takes a few numbers only."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from feedd.conversion import Conversion
from feedd.errors import BadShard, Internal, Unsupported
from feedd.formats.table import TableFormat
from feedd.shard_index import RegularIndex
from feedd.tables.columns import head_params
from feedd.tables.registry import lists_columns
from feedd.tables.task import MakeTask, MissingRanges
from feedd.tables.writer import Piece, TableWriter
from feedd.values import ByteRange
from feedd.workers import worker
from feedd.workers.calls import LONG_STREAM, make_call
from feedd.workers.executor import Executor
from feedd.workers.messages import ConvertedAnswer, Indexed, Prepare, encode, reply_decoder
from tests.budget import PATIENT_S
from tests.fakes.files import parquet_of
from tests.fakes.made import URL, answer_to, making
from tests.fakes.making import OutBytes

if TYPE_CHECKING:
    from feedd.tables.task import ConvertedShard

REGULAR: dict[str, Any] = {
    "n": np.arange(1000),
    "x": np.random.default_rng(0).random(1000, np.float32),
    "v": pa.array([[1.0, 2.0]] * 1000, pa.list_(pa.float32(), 2)),
    "price": pa.array([1] * 1000, pa.decimal128(9, 0)),
}


def answered(data: bytes, entry_bytes: int = -1) -> tuple[ConvertedAnswer, bytes]:
    """Return a worker's answer to a conversion of a Parquet file, as it arrives, and the table."""
    with making(data) as it:
        task = replace(it.task("parquet", "x.parquet"), entry_bytes=entry_bytes)
        answer = reply_decoder.decode(encode(answer_to(task)))
        assert isinstance(answer, ConvertedAnswer)
        return answer, it.written()


def accepted(answer: ConvertedAnswer) -> ConvertedShard:
    """Return what the daemon makes of an answer."""
    call = make_call(MakeTask(Conversion("parquet"), URL, 1, (), -1, -1, 0, 1, 1))
    call.accept(range(1), answer, [])
    assert not isinstance(call.result, MissingRanges)
    return call.result


def refusing(*_: Any) -> None:
    """Refuse to read a table.

    Raises:
        BadShard: always.
    """
    raise BadShard("expected field names that differ in more than case")


def without_index(answer: ConvertedAnswer) -> ConvertedAnswer:
    """Return an answer without an index and its time."""
    return msgspec.structs.replace(answer, index=None, busy_s=0.0)


@pytest.mark.parametrize("rows", [1000, 1, 0])
def test_a_regular_table_tells_its_index(rows: int) -> None:
    """The index is the one that a worker would read from the table."""
    answer, table = answered(parquet_of(**{name: column[:rows] for name, column in REGULAR.items()}))
    told = accepted(answer).index
    read = TableFormat().index(memoryview(table), URL)
    assert isinstance(told, RegularIndex)
    assert isinstance(read, RegularIndex)
    for name in ("fields", "strides", "sample_count", "encodings", "notes", "unread"):
        assert getattr(told, name) == getattr(read, name), name
    assert told.sample_count == rows


@pytest.mark.parametrize(
    "column",
    [["a", "bc"], pa.array([1, None]), pa.array([[1], [2, 3]], pa.list_(pa.int64()))],
    ids=["text", "missing", "lists"],
)
def test_other_tables_do_not(column: Any) -> None:
    """Text, missing values and lists of different lengths need an index with arrays, which a worker reads later."""
    answer, table = answered(parquet_of(n=[1, 2], other=column))
    assert accepted(answer).index is None
    assert TableFormat().regular_index(memoryview(table), URL) is None
    assert TableFormat().index(memoryview(table), URL).sample_count == 2


def test_a_table_that_was_not_written_to_its_end_does_not() -> None:
    """A shard that outgrew its cache entry has no foot there."""
    with making(parquet_of(**REGULAR)) as it:
        task = it.task("parquet", "x.parquet")
        answers = [answer_to(task)]
        assert isinstance(answers[0], ConvertedAnswer)
        size_bytes = answers[0].size_bytes  # an older shard, which lies where the next ones are written
        answers += [answer_to(replace(task, entry_bytes=size_bytes - less)) for less in (0, 1)]
        assert [isinstance(one, ConvertedAnswer) and one.index is not None for one in answers] == [True, True, False]


def test_an_index_that_fits_no_answer_is_left_out() -> None:
    """A table of thousands of columns is converted all the same."""
    answer, table = answered(parquet_of(**{f"a_rather_long_name_of_a_column_{n}": [1] for n in range(2000)}))
    assert answer.index is None
    assert answer.size_bytes == len(table)


def test_names_that_no_index_can_have_leave_the_conversion_alone() -> None:
    """The request for the index reports them."""
    data = parquet_of(a=[1], b=[2])
    answer, table = answered(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableFormat, "regular_index", refusing)
        refused, written = answered(data)
    assert refused.index is None
    assert (without_index(refused), written) == (without_index(answer), table)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_table_with_keys_is_not_regular(keyed: bool) -> None:
    """Its keys are not the numbers of its rows."""
    out = OutBytes()
    writer = TableWriter(out, 2, URL)
    writer.fixed("a", "int64", 8, [Piece(np.arange(2))])
    if keyed:
        writer.keys(b"ab", np.array([1, 2]))
    writer.finish()
    table = memoryview(bytes(out.written))
    assert (TableFormat().regular_index(table, URL) is None) == keyed
    assert TableFormat().index(table, URL).key(1) == ("b" if keyed else "00000001")


def test_what_a_worker_tells_is_checked() -> None:
    """A worker that a decoder's bug has taken over says what it likes."""
    good = Indexed(1, 0.0, ("a",), 2, 0, ("int64",), strides=((64, 8, 8),), is_regular=True)
    assert accepted(ConvertedAnswer(1, 0.0, 99, "table", good)).index is not None
    wrong: list[dict[str, Any]] = [
        {"sample_count": 1 << 40},
        {"sample_count": -1},
        {"strides": ()},
        {"strides": (None,)},
        {"is_regular": False},
    ]
    for change in wrong:
        told = Indexed(**{**{name: getattr(good, name) for name in good.__struct_fields__}, **change})
        with pytest.raises(Internal, match="expected"):
            accepted(ConvertedAnswer(1, 0.0, 99, "table", told))


def test_of_which_objects_the_beginning_lists_all_columns() -> None:
    """Of Parquet and Arrow; the first rows of text need not have a value in each column."""
    names = ("parquet", "arrow", "csv", "tsv", "npz", "gunzip", "gunzip+parquet", "head")
    assert [name for name in names if lists_columns(Conversion(name))] == ["parquet", "arrow"]
    assert not lists_columns(None)


def test_an_outline_is_a_short_call() -> None:
    """It waits for no conversion; a conversion, or an outline that needs much of its object, keeps a worker alone."""
    task = MakeTask(Conversion("parquet"), URL, 1 << 30, (ByteRange(0, 1000),), -1, -1, 0, 1, 1)
    outlines = [Conversion("parquet", head_params("")), Conversion("csv", head_params("")), Conversion("head", "tar")]
    for outline in outlines:
        call = make_call(replace(task, conversion=outline))
        assert (call.stream, call.long_s) == (0, 0.0)
        call = make_call(replace(task, conversion=outline, spans=(ByteRange(0, 9 << 20),)))
        assert call.stream == LONG_STREAM
        assert call.long_s > 0
    for whole in (Conversion("parquet"), Conversion("parquet", '[["a"]]'), Conversion("gunzip"), Conversion("rows")):
        call = make_call(replace(task, conversion=whole))
        assert call.stream == LONG_STREAM
        assert call.long_s > 0


def test_only_libraries_of_our_own_converters_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no converter has is ignored; a missing library is left to the conversion that needs it."""
    asked: list[str] = []

    def fail(name: str, extra: str, url: str) -> None:
        asked.append(name)
        raise Unsupported(extra, object=url)

    monkeypatch.setattr("feedd.tables.registry.loaded", fail)
    Executor().prepare(Prepare(converters=("os", "gunzip", "parquet", "csv")))
    assert set(asked) == {"feedd.tables.parquet", "feedd.tables.delimited"}


def test_a_worker_imports_formats_before_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets first, because the pool waits for that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    greeted: list[bool] = []

    def imported() -> dict[str, object]:
        greeted.append(bool(ours.recv(1 << 16, socket.MSG_DONTWAIT)))
        return {}

    monkeypatch.setattr(worker, "built_in", imported)
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        worker.serve(theirs)
    assert greeted == [True]


def test_a_worker_imports_in_advance_only_while_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait are done first."""
    done: list[Prepare] = []
    monkeypatch.setattr(Executor, "prepare", lambda _, request: done.append(request))
    later, now = Prepare(converters=("parquet",), when_idle=True), Prepare(converters=("csv",))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for request in (later, now):
            ours.send(encode(request))
        thread = threading.Thread(target=worker.serve, args=(theirs,))
        thread.start()
        try:
            deadline_s = time.monotonic() + PATIENT_S
            while len(done) < 2 and time.monotonic() < deadline_s:
                time.sleep(0.01)
        finally:
            ours.shutdown(socket.SHUT_WR)
            thread.join()
    assert done == [now, later]
