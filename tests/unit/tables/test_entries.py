"""Shards that are made again, into the entry that they had: it bounds what is kept of them, not how they are made."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace

import h5py
import numpy as np
import pyarrow.csv

from feedd.workers.messages import ConvertedAnswer
from tests.fakes.made import LIMIT_BYTES, answer_to, made_of, making

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used


def again(form: str, name: str, data: bytes, entry_bytes: int) -> tuple[int, bytes]:
    """Make a shard into an entry; return its size, and what was written."""
    with making(data) as it:
        task = replace(it.task(form, name), entry_bytes=entry_bytes, memory_bytes=1 << 20)
        answer = answer_to(task)
        assert isinstance(answer, ConvertedAnswer)
        return answer.size_bytes, it.written()


def test_text_larger_than_its_table_is_made_again() -> None:
    """What is unpacked on the way may be many times the entry."""
    text = "number,words\n" + "".join(f"{row},{'word ' * 40}\n" for row in range(1000))
    form, name, data = 'gunzip+csv:[["number"]]', "a.csv.gz", gzip.compress(text.encode())
    _, first = made_of(form, name, data)
    assert len(first) < len(text) // 10
    assert again(form, name, data, len(first)) == (len(first), first)


def test_what_turns_out_larger_is_counted_and_not_written() -> None:
    """Nothing is written behind the entry; its true size is told, so that it gets another one."""
    form, name, data = "gunzip", "a.txt.gz", gzip.compress(b"line\n" * 1000)
    assert again(form, name, data, 4000) == (5000, (b"line\n" * 1000)[:4000])
    assert again(form, name, data, 0) == (5000, b"")


def test_a_large_dataset_nobody_wants_is_no_matter() -> None:
    """Only what is read of an HDF5 file has to be small enough."""
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        file.create_dataset("images", (1000, LIMIT_BYTES // 500), "uint8", chunks=(1, 4096))
        file["labels"] = np.arange(1000)
    _, made = made_of('hdf5:[["labels"]]', "a.h5", sink.getvalue())
    assert np.arange(1000).tobytes() in made
