"""Every parser with a few good inputs to begin from."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import brotli
import cramjam
import cv2
import numpy as np
import pyarrow as pa
import zstandard

from feedd.formats.megatron import MegatronIndex, with_index_file
from feedd.formats.tokens import LLMC, NPY, RAW, TokenWindows, with_windows
from feedd.recipe.predecoded import rows_params
from feedd.recipe.recipe import parse_field
from feedd.tables.registry import get as conversion_of
from tests.fakes import making
from tests.fakes.files import npy, parquet
from tests.fakes.megatron import megatron
from tests.fakes.recordio import Record, dmlc, image_record, recordio
from tests.fakes.tars import tar_bytes
from tests.fakes.tfrecords import example, tfrecord
from tests.fuzz.judge import URL, make_shard, read_shard
from tests.fuzz.request_targets import PARSERS
from tests.unit.formats import test_tokens_format as tokens
from tests.unit.formats.test_files import pack
from tests.unit.formats.test_litdata import chunk, index_json, reader
from tests.unit.formats.test_lmdb import write as lmdb
from tests.unit.formats.test_mds import mds
from tests.unit.formats.test_strided import safetensors
from tests.unit.tables.test_arrays import ARRAYS, hdf5, npz
from tests.unit.tables.test_arrow import MORE, arrow
from tests.unit.tables.test_parquet import TABLE, check_harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIXTURES: Final = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Target:
    """What is given bytes.

    Attributes:
        read: returns or raises what ``judge.verdict`` knows.
        seeds: good inputs, made when asked for.
    """

    read: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]


def _picture() -> bytes:
    picture = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    return cv2.imencode(".jpg", picture)[1].tobytes()


SAMPLES: Final = [
    ("a/0001", {"jpg": _picture(), "cls": b"1", "json": b'{"a": [1, "b"]}', "npy": npy(np.arange(6.0))}),
    ("a/0002", {"cls": b"7", "txt": b"some text"}),
    ("k" * 120, {"seg.png": b"x" * 513}),
]
TAR: Final = tar_bytes(SAMPLES[:2])
SMALL: Final = {name: ARRAYS[name] for name in ("x", "Y", "text", "raw")}


def _records() -> list[bytes]:
    record = Record()
    record.features["values"].float32tensor.values.extend([1.0, 2.0])
    record.label["values"].int32tensor.values.append(3)
    record.features["image"].bytes.value.append(b"abc")
    return [recordio(record.SerializeToString(), record.SerializeToString())]


def _lmdb() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        entries = {b"%04d" % n: bytes([n]) * (n * 50) for n in range(60)}
        return [lmdb(Path(folder) / "data.mdb", entries), lmdb(Path(folder) / "few.mdb", {b"a": b"x" * 9000})]


def _fixture(pattern: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(FIXTURES.glob(pattern))]
    assert found, pattern
    return [one for one in found if len(one) <= 1 << 16] or [min(found, key=len)]


def _arrow(*, stream: bool) -> bytes:
    return arrow(MORE.select(["i32", "text", "ints", "view", "runs"]), stream=stream, batch_rows=2)


def _table() -> list[bytes]:
    some = TABLE.select(["i32", "text", "ints"])
    return [
        making.make(conversion_of("parquet"), parquet(some)).shard,
    ]


def _parquet() -> list[bytes]:
    some = TABLE.select(["flag", "i32", "text", "ints", "price"])
    dictionary = pa.table({"d": pa.array(["a", "b", "a", None] * 8)})
    return [
        parquet(some, compression="none"),
        parquet(some, row_group_size=2, data_page_version="2.0"),
        parquet(dictionary, compression="zstd"),
    ]


def _torch() -> list[bytes]:
    from tests.unit.formats.test_torch_file import GOOD  # noqa: PLC0415 - loads torch

    return [GOOD]


def _rows() -> str:
    return "rows:" + rows_params("tar", [parse_field("jpg", "image:8x8")], 1 << 20)


LITDATA: Final = reader(index_json(["int", "str", "jpeg"], ["i", "t", "p"], {"chunk-0-0.bin": (1000, 2)}))
CHUNK: Final = chunk([(5).to_bytes(8, "little"), b"abc", _picture()], [bytes(8), b"", b"x"])


def _format(name: str, *seeds: bytes) -> Target:
    return Target(functools.partial(read_shard, name), lambda: seeds)


def _form(name: str, *seeds: bytes, url: str = URL) -> Target:
    return Target(functools.partial(make_shard, name, url=url), lambda: seeds)


def _made(name: str, seeds: Callable[[], Sequence[bytes]]) -> Target:
    return Target(functools.partial(make_shard, name), seeds)


def _read(name: str, seeds: Callable[[], Sequence[bytes]]) -> Target:
    return Target(functools.partial(read_shard, name), seeds)


def _memory(write: Callable[[io.BytesIO], object]) -> bytes:
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


_EXAMPLE: Final = example(image=_picture(), label=[1, 2, 3], score=[0.5, 2.0], name=b"abc")
_TOKENS: Final = np.arange(40, dtype=np.uint16)
_CUT: Final = TokenWindows("uint16", 8, 8)

TARGETS: Final[dict[str, Target]] = {
    "auto": _format("auto", TAR, recordio(b"abc"), tfrecord(_EXAMPLE), b'{"a": 1}\n'),
    "tar": _format("tar", TAR, tar_bytes(SAMPLES, tarfile.GNU_FORMAT), tar_bytes(SAMPLES, tarfile.PAX_FORMAT)),
    "tfrecord": _format("tfrecord", tfrecord(_EXAMPLE, example(image=b"", label=[9], score=[1.5], name=b"d"))),
    "example": Target(lambda data: read_shard("tfrecord", tfrecord(data, _EXAMPLE)), lambda: [_EXAMPLE]),
    "sequences": _read("tfrecord", lambda: _fixture("tfrecord_sequences/data/*")),
    "mds": _format(
        "mds", mds({"text": "str", "x": "int", "raw": "bytes"}, [{"text": b"abc", "x": bytes(8), "raw": b"q"}] * 3)
    ),
    "mds-written": _read("mds", lambda: _fixture("mds/data/*.mds")),
    "litdata": _format(LITDATA, CHUNK),
    "recordio": _format("recordio", recordio(b"abc", b"defg") + dmlc(b"1234" * 3)),
    "recordio-raw": _format("recordio-raw", recordio(b"abc", b"defg")),
    "recordio-image": _format(
        "recordio-image",
        recordio(image_record(_picture(), [3.0], 1), image_record(_picture(), [1.0], 2)),
        recordio(image_record(b"x", [1.0, 2.0], 1)),
    ),
    "recordio-protobuf": _read("recordio-protobuf", _records),
    "text": _format("text", b"one\ntwo\r\n\nthree"),
    "jsonl": _format("jsonl", b'{"a": 1}\n[2]\n\n{"b": "\xc3\xbc"}\n'),
    "tokens": _format(with_windows(RAW, _CUT), tokens.raw(_TOKENS)),
    "tokens-llmc": _format(with_windows(LLMC, _CUT), tokens.llmc(_TOKENS)),
    "tokens-npy": _format(with_windows(NPY, _CUT), tokens.npy(_TOKENS)),
    "megatron": _format(
        with_index_file(MegatronIndex("x", 0, 30)), megatron([range(5), range(3), range(7)], "int16")[0]
    ),
    "table": _read("table", _table),
    "files": _format("files", pack([{f"a/{n}.jpg": b"x" * n, f"a/{n}.json": b"{}"} for n in range(5)])),
    "lmdb": _read("lmdb", _lmdb),
    "npy": _format("npy", npy(np.arange(12.0).reshape(4, 3)), npy(np.ones((3, 4), np.int16))),
    "safetensors": _format("safetensors", safetensors({"a": np.ones((3, 2), np.float32), "b": np.arange(3)})),
    "torch": _read("torch", _torch),
    "gunzip": _form(
        "gunzip", gzip.compress(b"line\n" * 99), gzip.compress(b"a") + gzip.compress(b"b", 0), url=f"{URL}.txt.gz"
    ),
    "inflate": _form("inflate", zlib.compress(b"line\n" * 99), zlib.compress(b"a", 0), url=f"{URL}.txt.zlib"),
    "bunzip2": _form("bunzip2", bz2.compress(b"abc" * 99) + bz2.compress(b"d"), url=f"{URL}.txt.bz2"),
    "unxz": _form("unxz", lzma.compress(b"abc" * 99) + bytes(4) + lzma.compress(b"d"), url=f"{URL}.txt.xz"),
    "unzstd": _form("unzstd", zstandard.compress(b"abc" * 99) + zstandard.compress(b"d"), url=f"{URL}.txt.zst"),
    "unbrotli": _form(
        "unbrotli", brotli.compress(b"line\n" * 99), brotli.compress(b"a", quality=0), url=f"{URL}.txt.br"
    ),
    "unsnappy": _form("unsnappy", bytes(cramjam.snappy.compress_raw(b"line\n" * 99)), url=f"{URL}.txt.snappy"),
    "join": _form("join", dmlc(b"12345678") + recordio(b"ab")),
    "join-dmlc": _form("join:dmlc", dmlc(b"1234\x0a\x23\xd7\xce5678") + recordio(b"ab")),
    "litdata-arrow": _made("litdata-arrow", lambda: _fixture("litdata_arrow/data/*.bin")),
    "arrow": _form("arrow", _arrow(stream=True), _arrow(stream=False)),
    "csv-pipe": _form("csv-pipe", b"a|b\n1|x\n"),
    "csv-semicolon": _form("csv-semicolon", b'a;b\n1,5;"x;"\n', b"1;2\n"),
    "csv": _form("csv", b'a,b,c\n1,x,0.5\n2,"y ""q""",1e3\n', b"a\n\xc3\xbc\n"),
    "tsv": _form("tsv", b"a\tb\n1\tx\n"),
    "npz": _form("npz", npz(SMALL), npz(SMALL, compressed=True)),
    "hdf5": _form("hdf5", hdf5(SMALL), hdf5({"x": ARRAYS["x"]}, chunks=True, compression="gzip")),
    "parquet": Target(check_harmless, _parquet),
    "rows": _form(_rows(), TAR),
    "head": _form("head:tar", TAR, TAR[:-700]),
    "head-auto": _form("head:auto", TAR, recordio(b"abc"), tfrecord(_EXAMPLE), b'{"a": 1}\n'),
    "head-tfrecord": _form("head:tfrecord", tfrecord(_EXAMPLE, _EXAMPLE)),
    "head-recordio": _form("head:recordio", recordio(b"abc", b"defg") + dmlc(b"1234" * 3)),
    "head-mds": _form("head:mds", mds({"text": "str", "x": "int"}, [{"text": b"abc", "x": bytes(8)}] * 3)),
    "head-litdata": _form(f"head:{LITDATA}", CHUNK),
    "count": _form("count:tar", TAR, TAR[:-700]),
    "count-mds": _form("count:mds", mds({"text": "str", "x": "int"}, [{"text": b"abc", "x": bytes(8)}] * 3)),
    "count-litdata": _form(f"count:{LITDATA}", CHUNK),
    "count-npy": _form("count:npy", npy(np.arange(12.0).reshape(4, 3))),
    "count-safetensors": _form("count:safetensors", safetensors({"a": np.ones((3, 2), np.float32)})),
    "arrow-rows": _form("arrow:rows", _arrow(stream=True), _arrow(stream=False)),
    "npz-rows": _form("npz:rows", npz(SMALL), npz(SMALL, compressed=True)),
    "head-npy": _form("head:npy", npy(np.arange(12.0).reshape(4, 3))),
    **{name: Target(read, functools.partial(list, seeds)) for name, (read, seeds) in PARSERS.items()},
}
