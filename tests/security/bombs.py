"""Small objects that expand, or state vast sizes, and what they cost a daemon.

``python -m tests.security.bombs [NAME ...]`` prints a table.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import os
import struct
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import brotli
import cramjam
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import torch
import zstandard
from PIL import Image

from feedd.formats.tfrecord import masked_crc
from feedd_client import FeedDataset, FeedError
from tests.e2e.daemon import Daemon
from tests.fakes.files import npy
from tests.fakes.tars import tar_bytes
from tests.unit.formats.test_litdata import index_json
from tests.unit.formats.test_mds import mds
from tests.unit.tables.test_arrow import MORE, arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MIB: Final = 1 << 20
MEMORY_BYTES: Final = 512 * MIB
"""``decode.memory`` of the daemon."""

BASE_BYTES: Final = 224 * MIB
"""What a worker has without any object: the interpreter, libraries, and what it kept of earlier calls."""

SHARD_BYTES: Final = 128 * MIB
"""The largest converted shard, which a worker maps: half of the cache."""

WORKER_BYTES: Final = MEMORY_BYTES + BASE_BYTES + SHARD_BYTES
RISE_BYTES: Final = 50_000_000
SETTINGS: Final = (f"decode.memory={MEMORY_BYTES >> 20}MiB", "cache.bypass=0")
INDEX_BYTES: Final = 40 * MIB
"""``decode.index_size`` of the daemon."""

_STEPS: Final = 4


@dataclass(frozen=True)
class Bomb:
    """A folder of hostile objects.

    Attributes:
        files: the objects by name.
        fields: fields to read; None: all.
        form: what the URL begins with.
        is_heavy: takes long to make or to read; left to ``make nightly``.
        reads: rows of the first batch if it must be read exactly; 0: it may be refused.
        rise_bytes: most that the daemon may grow by.
    """

    files: Callable[[], Mapping[str, bytes]]
    fields: Mapping[str, str] | None = None
    form: str = ""
    is_heavy: bool = False
    reads: int = 0
    rise_bytes: int = RISE_BYTES


@dataclass
class Outcome:
    """What a bomb did.

    Attributes:
        said: the error, or what was read.
        error: class of the error; empty: it was read.
        worker_bytes: peak of the largest worker's resident memory.
        rise_bytes: peak of the daemon's resident memory, less what it had before.
        took_s: seconds.
    """

    said: str
    error: str
    worker_bytes: int
    rise_bytes: int
    took_s: float


def _one(name: str, data: Callable[[], bytes]) -> Callable[[], dict[str, bytes]]:
    return lambda: {name: data()}


def _stream(pack: Any, piece: bytes, times: int, tail: bytes = b"") -> bytes:
    """Return ``piece`` many times, packed by an object with ``compress`` and ``flush``."""
    some = piece * max(1, MIB // len(piece))
    whole, rest = divmod(times, max(1, MIB // len(piece)))
    packed = [pack.compress(some) for _ in range(whole)]
    return b"".join([*packed, pack.compress(piece * rest + tail), pack.flush()])


def _gz(piece: bytes, times: int, tail: bytes = b"", head: bytes = b"") -> bytes:
    pack = zlib.compressobj(9, wbits=31)
    return pack.compress(head) + _stream(pack, piece, times, tail)


def _zst(piece: bytes, times: int, **options: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(compression_level=3, **options)
    return _stream(zstandard.ZstdCompressor(compression_params=parameters).compressobj(), piece, times)


class _Brotli:
    def __init__(self) -> None:
        self._inner = brotli.Compressor(quality=4)

    def compress(self, data: bytes) -> bytes:
        return bytes(self._inner.process(data))

    def flush(self) -> bytes:
        return bytes(self._inner.finish())


_UNLIKE: Final = b"a\nbb\n"
_MILLION: Final = 1_000_000


def _tar_gz(count: int) -> bytes:
    """Return a .tar.gz of empty members."""
    pack = zlib.compressobj(6, wbits=31)
    members = (tarfile.TarInfo(f"{number:07d}.cls") for number in range(count))
    made = [pack.compress(member.tobuf(tarfile.USTAR_FORMAT)) for member in members]
    return b"".join([*made, pack.compress(bytes(1024)), pack.flush()])


def _long_names() -> bytes:
    pack = zlib.compressobj(6, wbits=31)
    made = []
    for number in range(100):
        member = tarfile.TarInfo("x" * (MIB - 200) + f"{number}")
        made.append(pack.compress(member.tobuf(tarfile.PAX_FORMAT)))
    return b"".join([*made, pack.compress(bytes(1024)), pack.flush()])


def _tar_of(size: int) -> bytes:
    member = tarfile.TarInfo("a.cls")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)


def _in_tar(extension: str, data: bytes) -> dict[str, bytes]:
    return {"0.tar": tar_bytes([("a", {extension: data})])}


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _labels(rows: int) -> list[str]:
    """Return one of three words for each row, in no order."""
    return list(map(str, np.random.default_rng(rows).choice(["yes", "no", "maybe"], rows)))


def _numbers(rows: int) -> pa.Table:
    return pa.table({"a": np.random.default_rng(rows).integers(0, 100, rows)})


def _csv_gz(rows: int) -> bytes:
    lines = "".join(f"{number},{label}\n" for number, label in enumerate(_labels(rows)))
    return gzip.compress(f"id,label\n{lines}".encode())


HONEST: Final[dict[str, tuple[int, Callable[[int], bytes]]]] = {
    "numbers.parquet": (2_000_000, lambda rows: _parquet(_numbers(rows), compression="zstd")),
    "labels.parquet": (1_000_000, lambda rows: _parquet(pa.table({"id": np.arange(rows), "label": _labels(rows)}))),
    "labels.csv.gz": (2_000_000, _csv_gz),
    "labels.txt.gz": (1_000_000, lambda rows: gzip.compress("".join(f"{one}\n" for one in _labels(rows)).encode())),
    "numbers.jsonl.gz": (
        1_000_000,
        lambda rows: gzip.compress("".join(f'{{"a":{one}}}\n' for one in range(rows)).encode()),
    ),
    "digits.txt": (1_000_000, lambda rows: b"".join(b"%d\n" % (number % 12) for number in range(rows))),
}
"""Small files that hide nothing: their number of rows, and how they are made."""


def _large_value(rows: int) -> pa.Table:
    indices, values = pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (4 * MIB)])
    return pa.table({"a": pa.DictionaryArray.from_arrays(indices, values)})


def _ipc(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _vast_buffer() -> bytes:
    data = bytearray(arrow(MORE, stream=True, compression="lz4", batch_rows=3))
    data[data.index(bytes([8, 0, 0, 0, 0, 0, 0, 0]) + b'\x04"M\x18') + 6] = 1
    return bytes(data)


def _npy_head(shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def _npz(head: bytes, zeros: int) -> bytes:
    sink = io.BytesIO()
    with (
        zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as one,
    ):
        one.write(head)
        for _ in range(zeros // MIB):
            one.write(bytes(MIB))
    return sink.getvalue()


def _hdf5(shape: tuple[int, ...], chunks: tuple[int, ...], *, write: bool) -> bytes:
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        dataset = file.create_dataset("a", shape, np.uint8, chunks=chunks, compression="gzip", compression_opts=9)
        if write:
            dataset[: chunks[0]] = 0
    return sink.getvalue()


def _tensors(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def _strides() -> bytes:
    sink = io.BytesIO()
    torch.save({"a": torch.zeros(1).expand(1 << 33, 4)}, sink)
    return sink.getvalue()


def _picture(kind: str, side: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    Image.new("L", (side, side)).save(sink, kind, **options)
    return sink.getvalue()


def _png_head(side: int) -> bytes:
    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", zlib.compress(bytes(1000))) + block(b"IEND", b"")
    )


def _jpeg_of(side: int) -> bytes:
    data = bytearray(_picture("JPEG", 64))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(data)


def _sound(kind: str, seconds: int) -> bytes:
    sink = io.BytesIO()
    with soundfile.SoundFile(sink, "w", 48000, 8, format=kind) as file:
        for _ in range(seconds):
            file.write(np.zeros((48000, 8), np.int16))
    return sink.getvalue()


def _wav_of(size: int) -> bytes:
    form = struct.pack("<HHIIHH", 1, 2, 48000, 192000, 4, 16)
    return (
        b"RIFF"
        + struct.pack("<I", size)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", size - 36)
        + bytes(4000)
    )


def _litdata(count: int) -> dict[str, bytes]:
    offsets = np.full(count + 1, 4 * (count + 2), "<u4").tobytes()
    chunk = struct.pack("<I", count) + offsets
    return {"index.json": index_json(["int"], ["a"], {"chunk-0-0.bin": (len(chunk), count)}), "chunk-0-0.bin": chunk}


def _empty_record() -> bytes:
    head = bytes(8)
    return head + struct.pack("<II", masked_crc(head), masked_crc(b""))


def _mds_rows(count: int) -> bytes:
    """Return an MDS shard of rows without columns."""
    seed = mds({"a": "uint16"}, [{"a": bytes(2)}])
    header = seed[12 : int.from_bytes(seed[4:8], "little")]
    begin = 8 + 4 * count + len(header)
    offsets = (begin + 2 * np.arange(count + 1, dtype=np.int64)).astype("<u4").tobytes()
    return struct.pack("<I", count) + offsets + header + bytes(2 * count)


def _xz_dictionary() -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1536 * MIB}]
    return _stream(_Declared(filters), _UNLIKE, 100_000)


class _Declared:
    """xz data whose head states another dictionary than it was made with."""

    def __init__(self, filters: Any) -> None:
        small = [{**filters[0], "dict_size": 1 << 16}]
        self._inner = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=small)

    def compress(self, data: bytes) -> bytes:
        made = self._inner.compress(data)
        if made.startswith(b"\xfd7zXZ") and len(made) >= 24:  # the head of the stream, and that of the first block
            block = bytearray(made[12:24])
            block[4] = 37  # LZMA2's dictionary: 1.5 GiB
            block[8:12] = struct.pack("<I", zlib.crc32(bytes(block[:8])))
            made = made[:12] + bytes(block) + made[24:]
        return made

    def flush(self) -> bytes:
        return self._inner.flush()


def _lmdb() -> bytes:
    import lmdb  # noqa: PLC0415 - it keeps a thread-local state

    with tempfile.TemporaryDirectory() as folder:
        with lmdb.open(f"{folder}/a", subdir=False, map_size=MIB) as env, env.begin(write=True) as change:
            for number in range(100):
                change.put(b"%04d" % number, bytes(5000))
        data = bytearray(Path(folder, "a").read_bytes())
    for at in range(0, len(data), 4096):
        if data[at + 10] & 4:  # an overflow page: its number of pages
            data[at + 12 : at + 16] = b"\xff\xff\xff\x7f"
    return bytes(data)


_CSV_WIDE: Final = b",".join(b"%d" % number for number in range(_MILLION))
_LINES: Final = 40 * _MILLION
_TEXT: Final = {"text": "bytes"}

BOMBS: Final[dict[str, Bomb]] = {
    # compressed
    "gzip of equal lines": Bomb(_one("0.txt.gz", lambda: _gz(b"a\n", _LINES)), _TEXT),
    "gzip of as many equal lines as may be": Bomb(
        _one("0.txt.gz", lambda: _gz(b"a\n", INDEX_BYTES // 16)), _TEXT, reads=64
    ),
    "gzip of as many unequal lines as may be": Bomb(
        _one("0.txt.gz", lambda: _gz(_UNLIKE, INDEX_BYTES // 40 - 1)), _TEXT, reads=64
    ),
    "gzip of unequal lines": Bomb(_one("0.txt.gz", lambda: _gz(_UNLIKE, _LINES // 2)), _TEXT),
    "gzip of blank lines": Bomb(_one("0.txt.gz", lambda: _gz(b"\n", 2 * _LINES, b"a\n")), _TEXT, reads=1),
    "gzip larger than a shard": Bomb(_one("0.txt.gz", lambda: _gz(b"a\n", 300 * _MILLION)), _TEXT, is_heavy=True),
    "gzip of one line": Bomb(_one("0.txt.gz", lambda: _gz(b"a", 100 * MIB)), _TEXT),
    "gzip in 200,000 members": Bomb(_one("0.txt.gz", lambda: gzip.compress(b"") * 200_000), _TEXT),
    "bzip2 of unequal lines": Bomb(_one("0.txt.bz2", lambda: _stream(bz2.BZ2Compressor(1), _UNLIKE, _MILLION)), _TEXT),
    "xz of unequal lines": Bomb(
        _one("0.txt.xz", lambda: _stream(lzma.LZMACompressor(preset=0), _UNLIKE, 20 * _MILLION)), _TEXT
    ),
    "xz with a dictionary of 1.5 GiB": Bomb(_one("0.txt.xz", _xz_dictionary), _TEXT),
    "zstd of unequal lines": Bomb(_one("0.txt.zst", lambda: _zst(_UNLIKE, 20 * _MILLION)), _TEXT),
    "zstd with a window of 2 GiB": Bomb(
        _one("0.txt.zst", lambda: _zst(b"a\n", MIB, window_log=31, enable_ldm=1)), _TEXT, is_heavy=True
    ),
    "brotli of unequal lines": Bomb(_one("0.txt.br", lambda: _stream(_Brotli(), _UNLIKE, 20 * _MILLION)), _TEXT),
    "zlib of unequal lines": Bomb(
        _one("0.txt.zlib", lambda: _stream(zlib.compressobj(9), _UNLIKE, 20 * _MILLION)), _TEXT
    ),
    "snappy of unequal lines": Bomb(
        _one("0.txt.snappy", lambda: bytes(cramjam.snappy.compress_raw(_UNLIKE * (16 * _MILLION)))), _TEXT
    ),
    "snappy that states 4 GiB": Bomb(_one("0.txt.snappy", lambda: b"\xff\xff\xff\xff\x0f" + b"\x04a" * 100), _TEXT),
    # text
    "lines": Bomb(  # neither compressed nor declared: each byte was sent, and the index may take 12 times as much
        _one("0.txt", lambda: _UNLIKE * (2 * _MILLION)), _TEXT, rise_bytes=12 * len(_UNLIKE) * 2 * _MILLION
    ),
    "JSON Lines of empty objects": Bomb(_one("0.jsonl.gz", lambda: _gz(b"{}\n", 20 * _MILLION)), {"json": "json"}),
    "JSON Lines of unequal lines": Bomb(_one("0.jsonl.gz", lambda: _gz(b"{}\n[1]\n", 10 * _MILLION)), {"json": "json"}),
    "JSON nested a million deep": Bomb(
        _one("0.jsonl.gz", lambda: _gz(b"[", _MILLION, b"]" * _MILLION)), {"json": "json"}
    ),
    "JSON of one line with 50 million numbers": Bomb(
        _one("0.jsonl.gz", lambda: _gz(b"1,", 50 * _MILLION, b"1]\n", b"[")), {"json": "json"}
    ),
    "CSV of a million columns": Bomb(_one("0.csv", lambda: _CSV_WIDE + b"\n" + _CSV_WIDE + b"\n")),
    "CSV of a million columns, gzip": Bomb(_one("0.csv.gz", lambda: _gz(b"1,", _MILLION - 1, b"1\n" * 1))),
    "CSV of 8 million rows": Bomb(_one("0.csv.gz", lambda: _gz(b"1\n", _LINES // 5, head=b"a\n")), {"a": "int"}),
    "CSV of 20 million texts": Bomb(
        _one("0.csv.gz", lambda: _gz(b"x\nyy\n", _LINES // 4, head=b"a\n")), {"a": "bytes"}
    ),
    "CSV with an open quote": Bomb(
        _one("0.csv.gz", lambda: _gz(b"x,y\n", 10 * _MILLION, head=b'a,b\n"')), {"a": "bytes"}
    ),
    "TSV of a million columns": Bomb(_one("0.tsv", lambda: _CSV_WIDE.replace(b",", b"\t") + b"\n")),
    # as large as an index may be
    "CSV of 2 million labels": Bomb(_one("0.csv.gz", lambda: _csv_gz(2 * _MILLION)), reads=64),
    "Parquet of 2 million labels": Bomb(
        _one("0.parquet", lambda: _parquet(pa.table({"id": np.arange(2 * _MILLION), "label": _labels(2 * _MILLION)}))),
        reads=64,
    ),
    "Parquet of 2.6 million numbers": Bomb(_one("0.parquet", lambda: _parquet(_numbers(2_600_000))), reads=64),
    "Parquet of texts and of rows without": Bomb(
        _one("0.parquet", lambda: _parquet(pa.table({"a": ["a", None, "bb"] * 580_000}))), {"a": "bytes"}
    ),
    "Parquet of ten texts": Bomb(
        _one("0.parquet", lambda: _parquet(pa.table({f"c{one}": ["a", "bb"] * 370_000 for one in range(10)}))), reads=64
    ),
    "JSON Lines of 2 million numbers": Bomb(
        _one("0.jsonl.gz", lambda: _gz(b'{"a":1}\n{"a":11}\n', _MILLION)), {"json": "json"}, reads=64
    ),
    # archives and records
    "tar.gz of empty members": Bomb(_one("0.tar.gz", lambda: _tar_gz(60_000)), {"cls": "bytes"}),
    "tar.gz of members with long names": Bomb(_one("0.tar.gz", _long_names), {"cls": "bytes"}),
    "tar of a member that states 2^60 bytes": Bomb(_one("0.tar", lambda: _tar_of(1 << 60)), {"cls": "bytes"}),
    "TFRecord that states 2^62 bytes": Bomb(
        _one(
            "0.tfrecord", lambda: (head := struct.pack("<Q", 1 << 62)) + struct.pack("<I", masked_crc(head)) + bytes(99)
        )
    ),
    "TFRecord of empty records": Bomb(
        _one("0.tfrecord.gz", lambda: _gz(_empty_record(), 2 * _MILLION)), {"data": "bytes"}
    ),
    "RecordIO of empty records": Bomb(
        _one("0.rec.gz", lambda: _gz(struct.pack("<II", 0xCED7230A, 0), 10 * _MILLION)),
        {"data": "bytes"},
        "recordio-raw+",
    ),
    "RecordIO that states 512 MiB": Bomb(
        _one("0.rec", lambda: struct.pack("<II", 0xCED7230A, (1 << 29) - 1) + bytes(99)), {"data": "bytes"}
    ),
    "MDS of 10 million rows": Bomb(_one("shard.00000.mds.zstd", lambda: zstandard.compress(_mds_rows(10 * _MILLION)))),
    "MDS that states 2^32 rows": Bomb(_one("shard.00000.mds", lambda: b"\xff" * 8 + bytes(999))),
    "LitData of two million empty items": Bomb(lambda: _litdata(2 * _MILLION)),
    "LitData that states 2^32 items": Bomb(
        lambda: {**_litdata(10), "chunk-0-0.bin": b"\xff" * 4 + bytes(44)}, {"a": "int"}
    ),
    "LMDB that states vast pages": Bomb(_one("0.lmdb", _lmdb)),
    # tables and arrays
    "Parquet of 60 million equal rows": Bomb(
        _one("0.parquet", lambda: _parquet(pa.table({"a": pa.array(np.zeros(60 * _MILLION, np.int8))}))),
        {"a": "int"},
        is_heavy=True,
    ),
    "Parquet of one large value in every row": Bomb(
        _one("0.parquet", lambda: _parquet(_large_value(4000), dictionary_pagesize_limit=64 * MIB)), {"a": "bytes"}
    ),
    "Parquet of large pages": Bomb(
        _one(
            "0.parquet",
            lambda: _parquet(
                pa.table({"a": [bytes(600 * MIB)]}), compression="zstd", use_dictionary=False, write_statistics=False
            ),
        ),
        {"a": "bytes"},
        is_heavy=True,
    ),
    "Parquet of 20,000 columns": Bomb(
        _one("0.parquet", lambda: _parquet(pa.table({f"c{number}": [1] for number in range(20_000)}))), is_heavy=True
    ),
    "Arrow of one large value in every row": Bomb(_one("0.arrow", lambda: _ipc(_large_value(4000))), {"a": "bytes"}),
    "Arrow of compressed zeros": Bomb(
        _one("0.arrow", lambda: _ipc(pa.table({"a": np.zeros(900 * MIB, np.uint8)}), compression="zstd")), {"a": "int"}
    ),
    "Arrow that states a buffer of 2^48 bytes": Bomb(_one("0.arrows", _vast_buffer)),
    "npz of compressed zeros": Bomb(_one("0.npz", lambda: _npz(_npy_head((900 * MIB, 1)), 900 * MIB)), {"a": "array"}),
    "npz that states 2^40 rows": Bomb(_one("0.npz", lambda: _npz(_npy_head((1 << 40, 1)), MIB)), {"a": "array"}),
    "npy that states 2^39 rows": Bomb(_one("0.npy", lambda: _npy_head((1 << 39, 1)) + bytes(64))),
    "HDF5 that states 2^40 rows": Bomb(_one("0.h5", lambda: _hdf5((1 << 40, 1), (1 << 20, 1), write=False))),
    "HDF5 of one chunk of 1 GiB": Bomb(
        _one("0.h5", lambda: _hdf5((1 << 30, 1), (1 << 30, 1), write=True)), is_heavy=True
    ),
    "HDF5 of a chunk that states 3 GiB": Bomb(_one("0.h5", lambda: _hdf5((3 << 30, 1), (3 << 30, 1), write=False))),
    "torch.save with strides of zero": Bomb(_one("0.pt", _strides)),
    "safetensors with a header of 2^40 bytes": Bomb(
        _one("0.safetensors", lambda: struct.pack("<Q", 1 << 40) + b"{" + bytes(99))
    ),
    "safetensors with a nested header": Bomb(_one("0.safetensors", lambda: _tensors(b'{"a":' * (2 * _MILLION)))),
    "safetensors of 200,000 tensors": Bomb(
        _one(
            "0.safetensors",
            lambda: _tensors(
                json.dumps(
                    {f"{n}": {"dtype": "U8", "shape": [1, 0], "data_offsets": [0, 0]} for n in range(200_000)}
                ).encode()
            ),
        )
    ),
    "megatron index of vast counts": Bomb(
        lambda: {
            "0.idx": b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1 << 40, 1 << 40) + bytes(99),
            "0.bin": bytes(64),
        },
        {"tokens": "array"},
        "megatron+",
    ),
    # samples
    "PNG of 16,384 by 16,384 pixels": Bomb(lambda: _in_tar("png", _picture("PNG", 16384)), {"png": "image:32x32"}),
    "PNG that states 60,000 by 60,000 pixels": Bomb(lambda: _in_tar("png", _png_head(60_000)), {"png": "image:32x32"}),
    "JPEG that states 65,500 by 65,500 pixels": Bomb(lambda: _in_tar("jpg", _jpeg_of(65_500)), {"jpg": "image:32x32"}),
    "JPEG that states 11,000 by 11,000 pixels": Bomb(lambda: _in_tar("jpg", _jpeg_of(11_000)), {"jpg": "image:32x32"}),
    "WebP of 11,500 by 11,500 pixels": Bomb(
        lambda: _in_tar("webp", _picture("WEBP", 11_500, lossless=True, quality=0)),
        {"webp": "image:32x32"},
        is_heavy=True,
    ),
    "TIFF of 20,000 by 20,000 pixels": Bomb(
        lambda: _in_tar("tif", _picture("TIFF", 20_000, compression="tiff_deflate")), {"tif": "image:32x32"}
    ),
    "GIF of 11,500 by 11,500 pixels": Bomb(lambda: _in_tar("gif", _picture("GIF", 11_500)), {"gif": "image:32x32"}),
    "WAV that states 4 GiB": Bomb(lambda: _in_tar("wav", _wav_of(0xFFFFFFF0)), {"wav": "audio"}),
    "FLAC of 15 minutes of silence": Bomb(
        lambda: _in_tar("flac", _sound("FLAC", 900)), {"flac": "audio"}, is_heavy=True
    ),
    "npy field that states 2^38 bytes": Bomb(lambda: _in_tar("npy", _npy_head((1 << 38,)) + bytes(64)), {"npy": "npy"}),
    "npy field of zeros": Bomb(lambda: _in_tar("npy", npy(np.zeros((4, 4)))), {"npy": "npy"}, reads=1),
}


@dataclass
class Watch:
    """Watches the memory of a daemon and of its workers; a context manager."""

    daemon: Daemon
    worker_bytes: int = 0
    rise_bytes: int = 0
    _before_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        assert self.daemon.process is not None
        for pid in (self.daemon.process.pid, *self._workers()):
            with contextlib.suppress(OSError):  # another user's, or gone
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins again
        self._before_bytes = _memory(self.daemon.process.pid, "VmRSS")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._thread is not None
        self._over.set()
        self._thread.join()
        self._look()

    def _workers(self) -> list[int]:
        assert self.daemon.process is not None
        path = Path(f"/proc/{self.daemon.process.pid}/task/{self.daemon.process.pid}/children")
        return list(map(int, path.read_text().split())) if path.exists() else []

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self._look()

    def _look(self) -> None:
        assert self.daemon.process is not None
        now_bytes = _memory(self.daemon.process.pid, "VmRSS")
        self.rise_bytes = max(self.rise_bytes, now_bytes - self._before_bytes)
        self.worker_bytes = max([self.worker_bytes, *(_memory(pid, "VmHWM") for pid in self._workers())])


def _memory(pid: int, name: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = text.partition(f"{name}:")[2].split(maxsplit=1)
    return int(found[0]) * 1024 if found else 0


def laid(bomb: Bomb, folder: Path) -> str:
    """Write a bomb's objects; return its URL."""
    folder.mkdir()
    for name, data in bomb.files().items():
        (folder / name).write_bytes(data)
    return f"{bomb.form}file://{folder}/"


def opened(daemon: Daemon, bomb: Bomb, url: str) -> Outcome:
    """Read a few batches of a bomb through a daemon."""
    began_s = time.perf_counter()
    error, said = "", "nothing"
    with Watch(daemon) as watch:
        try:
            said = _read(daemon, url, bomb)
        except FeedError as caught:
            error, said = type(caught).__name__, str(caught)
    return Outcome(said, error, watch.worker_bytes, watch.rise_bytes, time.perf_counter() - began_s)


def _read(daemon: Daemon, url: str, bomb: Bomb) -> str:
    dataset = FeedDataset(
        url,
        batch_size=64,
        fields=bomb.fields,
        address=daemon.address,
        copy=True,
        open_timeout_s=60,
        shuffle=True,
        seed=1,
    )
    rows = [_rows(batch) for batch in itertools.islice(dataset, _STEPS)]
    return f"{len(rows)} batches, the first of {rows[0] if rows else 0} rows"


def _rows(batch: Mapping[str, Any]) -> int:
    return len(next(iter(batch.values())))


def main(names: Iterable[str]) -> None:
    """Print what each bomb does, with a daemon of its own."""
    print("| bomb | bytes | outcome | worker's peak, MiB | daemon's rise, MB | seconds |\n|---|---|---|---|---|---|")
    for name, bomb in BOMBS.items():
        if names and not any(one in name for one in names):
            continue
        with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp") as home:
            url = laid(bomb, Path(home, "data"))
            size_bytes = sum(one.stat().st_size for one in Path(home, "data").iterdir())
            with Daemon(
                Path(home), "http://127.0.0.1:9", cache_size="256MiB", settings=SETTINGS, forked=False
            ) as daemon:
                found = opened(daemon, bomb, url)
        said = f"{found.error}: {found.said}" if found.error else found.said
        worker, rise = found.worker_bytes / MIB, found.rise_bytes / 1e6
        over = " OVER" if found.worker_bytes > WORKER_BYTES or found.rise_bytes > bomb.rise_bytes else ""
        print(
            f"| {name} | {size_bytes:,} | {said[:160]} | {worker:.0f} | {rise:.0f}{over} | {found.took_s:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    main(sys.argv[1:])
