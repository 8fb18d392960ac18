"""What forms make of the same bytes is always the same, or their version grows: caches keep what was made."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from feedd.cache.entry_layout import CONVERSIONS_VERSION
from feedd.tables.columns import TYPES
from feedd.tables.registry import get
from tests.fakes.files import parquet
from tests.fakes.making import HeldBytes, OutBytes, make
from tests.fakes.recordio import dmlc
from tests.fakes.tars import tar_bytes
from tests.unit.tables.test_arrays import hdf5, npz
from tests.unit.tables.test_arrow import arrow

if TYPE_CHECKING:
    from collections.abc import Callable

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used

_TEXT = b'\xef\xbb\xbfname,n,"x ",when,flag\nab,1,0.5,2020-01-02,true\n"c, ""d""",2,,2021-01-02,false\n'
_ARRAYS = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3),
    "Y": np.array([1, -2, 3, 1 << 40]),
    "raw": np.array([b"a", b"bc", b"", b"d"]),
}
_TABLE = pa.table(
    {
        "i": pa.array([1, None, 3], pa.int32()),
        "t": ["a", "", None],
        "l": [[1.5], [], [2.0, 3.0]],
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "b": [True, None, False],
    }
)
_CHAT = pa.array([[{"role": "user"}], [], None])

MADE_BY: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "csv": ("csv", lambda: _TEXT, "279fecc7ba50cfc0"),
    "csv types": ("csv:types", lambda: _TEXT, "3f2337d8405a1d17"),
    "csv by another sign": ("csv", lambda: _TEXT.replace(b",", b";"), "4b99ed628230da40"),
    "csv of columns": ('csv:[["n"],["x"]]', lambda: _TEXT, "2cd7a9512745a5e4"),
    "tsv": ("tsv", lambda: b"1\tx\n2\t\n", "c1889f23f046be95"),
    "packed csv": ("gunzip+csv", lambda: gzip.compress(_TEXT), "279fecc7ba50cfc0"),
    "npz": ("npz", lambda: npz(_ARRAYS), "94cc8c5534b73956"),
    "hdf5": ("hdf5", lambda: hdf5(_ARRAYS, chunks=True), "731ba1f928562b15"),
    "arrow": ("arrow", lambda: arrow(_TABLE, stream=False), "e11fc1eb925720ce"),
    "parquet": ("parquet", lambda: parquet(_TABLE), "e11fc1eb925720ce"),
    "head of tar": ("head:tar", lambda: tar_bytes([("a", {"n": b"1"}), ("b", {"n": b"2"})]), "157d4d45ffcb7fe4"),
    "head of Parquet": ('parquet:{"columns":[["i"]],"head":true}', lambda: parquet(_TABLE), "f339f89d5286be8c"),
    "head of Arrow": (
        'arrow:{"columns":[["t"]],"head":true}',
        lambda: arrow(_TABLE, stream=False),
        "8cce339457098edf",
    ),
    "columns that are not there": ('arrow:[["none"]]', lambda: arrow(_TABLE, stream=False), "0e5e0713e6bdb019"),
    "columns nobody reads": ("parquet", lambda: parquet(_TABLE.append_column("chat", [_CHAT])), "78d3385361234ab0"),
    "join": ("join", lambda: dmlc(b"1234\x0a\x23\xd7\xce5678"), "a56cce1fa09b170d"),
    "gunzip": ("gunzip", lambda: gzip.compress(b"a\nb\n") + gzip.compress(b"c\n"), "df6176fbfbfa8b73"),
}
"""Form, object, and the digest of what version "3" makes of it."""


@pytest.mark.parametrize("name", MADE_BY)
def test_what_is_made_changes_with_the_version_only(name: str) -> None:
    """Where this fails: raise CONVERSIONS_VERSION, for caches hold what was made before, and renew the digests here."""
    form, data, digest = MADE_BY[name]
    kind, _, params = form.partition(":")
    url = "s3://b/shard.txt.gz" if form == "gunzip" else "s3://b/shard"
    if params == TYPES:  # no shard: a note for the daemon
        out = OutBytes()
        whole = HeldBytes(len(data()), (), memoryview(data()))
        get(kind).make(whole, url, params, out)
        made = bytes(out.written)
    else:
        made = make(get(kind), data(), params, url, limit_bytes=1 << 30).shard
    assert (CONVERSIONS_VERSION, hashlib.blake2b(made, digest_size=8).hexdigest()) == ("3", digest)
