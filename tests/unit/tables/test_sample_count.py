"""The samples of a shard, counted from its headers: as many as the whole shard has, of the same fields."""

from __future__ import annotations

import io
import itertools
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedd.errors import BadShard, Unsupported
from feedd.formats import format_registry as formats
from feedd.tables.arrow import ARROW_CONVERTER
from feedd.tables.columns import ROWS_ONLY
from feedd.tables.npz import NPZ_CONVERTER
from feedd.tables.outlines import COUNT_CONVERTER
from feedd.tables.registry import count_conversion, get, only_counts
from tests.fakes.making import make
from tests.fakes.tars import tar_bytes
from tests.unit.formats.test_strided import safetensors
from tests.unit.tables.test_arrays import npz
from tests.unit.tables.test_arrow import arrow
from tests.unit.tables.test_first_samples import shard

_MIB = 1 << 20
KINDS = ("npy", "tar", "mds", "litdata", "safetensors")


def _large(kind: str) -> tuple[str, bytes]:
    """Return a format and a shard of 3 samples with 2 MiB each."""
    if kind == "safetensors":
        return kind, safetensors({"a": np.zeros((3, _MIB // 2), np.float32), "b": np.zeros(3, np.float32)})
    return shard(kind, 3, 2 * _MIB)


@pytest.mark.parametrize("kind", KINDS)
def test_headers_tell_samples_and_fields(kind: str) -> None:
    """And less than a tenth of the shard is fetched."""
    name, data = _large(kind)
    conversion = count_conversion(None, name)
    assert conversion is not None
    assert only_counts(conversion)
    made = make(get(conversion.name), data, conversion.params)
    whole = formats.get(name).index(memoryview(data), "s3://b/a")
    assert made.index.sample_count == whole.sample_count == 3
    assert (made.index.fields, made.index.unread) == (whole.fields, whole.unread)
    encodings = [list(map(index.encoding_of, range(len(index.fields)))) for index in (made.index, whole)]
    assert encodings[0] == encodings[1]
    assert made.fetched_bytes < len(data) / 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", ["end", "head"])
def test_a_shard_that_is_cut_or_damaged_is_refused(kind: str, cut: str) -> None:
    """Its whole then tells what is wrong."""
    name, data = _large(kind)
    damaged = data[: -3 * _MIB] if cut == "end" else b"\xff" * 600 + data[600:]
    with pytest.raises((BadShard, Unsupported)):
        make(COUNT_CONVERTER, damaged, name)


def test_a_tar_of_small_members_is_refused_after_one_request() -> None:
    """Its whole is fetched sooner than its headers."""
    data = tar_bytes([(f"{n:04}", {"jpg": bytes(100_000)}) for n in range(30)])
    with pytest.raises(BadShard, match="expected few headers, got 1 before byte"):
        make(COUNT_CONVERTER, data, "tar")


def test_a_tar_of_small_members_behind_a_large_one_is_refused_after_few_requests() -> None:
    """Ranges that touch are still requests of their own."""
    data = tar_bytes([(f"{n:04}", {"cls": bytes(9 if n else 2 * _MIB)}) for n in range(2000)])
    with pytest.raises(BadShard, match="expected few headers, got 3 before byte"):
        make(COUNT_CONVERTER, data, "tar")


def test_a_tar_of_very_many_members_is_refused() -> None:
    """Requests for its headers would follow one another for too long."""

    class Huge:
        size_bytes = 1 << 40
        spans = ()
        data = memoryview(b"")

    found = formats.get("tar").outline(Huge(), "")  # type: ignore[attr-defined]  # it is an OutlinedFormat
    assert (found.start, found.end) == (0, 64 << 10)
    held = Huge()
    held.data = memoryview(tar_bytes([("a", {"bin": bytes(2 * _MIB)})]))[: 64 << 10]
    held.spans = (found,)  # type: ignore[assignment]  # of this instance
    with pytest.raises(BadShard, match="expected few headers"):
        formats.get("tar").outline(held, "")  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("name", ["tfrecord", "text", "lmdb", "auto", "tokens:{}"])
def test_other_formats_are_read_whole(name: str) -> None:
    """Their headers do not tell the samples, or lie in a row."""
    assert count_conversion(None, name) is None


BATCHES: dict[str, Any] = {"plain": {}, "zstd": {"compression": "zstd"}}


@pytest.mark.parametrize("how", BATCHES)
def test_rows_of_an_arrow_file_are_told_by_its_batches(how: str) -> None:
    """Only the metadata of each is fetched, compressed or not; columns that cannot be fields are still told."""
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 900_000)
    table = pa.table({"n": numbers, "m": pa.array([{1: 2}] * len(numbers), pa.map_(pa.int8(), pa.int8()))})
    data = arrow(table, stream=False, batch_rows=400_000, **BATCHES[how])
    made = make(ARROW_CONVERTER, data, ROWS_ONLY)
    assert (made.index.sample_count, made.index.fields) == (len(numbers), ())
    assert [name for name, _ in made.index.unread] == ["m"]
    assert made.fetched_bytes < len(data) / 10


@pytest.mark.parametrize(("stream", "batch_rows"), [(True, 100_000), (False, 1_000)])
def test_other_arrow_is_read_whole(*, stream: bool, batch_rows: int) -> None:
    """A stream has no footer; small batches are fetched sooner than their metadata."""
    data = arrow(pa.table({"n": np.arange(200_000)}), stream=stream, batch_rows=batch_rows)
    made = make(ARROW_CONVERTER, data, ROWS_ONLY)
    assert made.index.sample_count == 200_000
    assert made.fetched_bytes == len(data)


def test_a_broken_arrow_footer_is_a_bad_shard() -> None:
    """Whichever byte of footer or metadata is broken, no other error comes, and no wrong length is trusted."""
    data = arrow(pa.table({"n": np.arange(300_000)}), stream=False, batch_rows=150_000)
    for at in itertools.chain(range(len(data) - 300, len(data)), range(8, 400, 7)):
        broken = bytearray(data)
        broken[at] ^= 0x55
        try:
            made = make(ARROW_CONVERTER, bytes(broken), ROWS_ONLY)
        except (BadShard, Unsupported):
            continue
        assert made.index.sample_count <= 1 << 26


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_of_npz_are_told_by_the_headers_of_its_arrays(*, compressed: bool) -> None:
    """The directory at its end tells where they lie."""
    numbers = np.random.default_rng(0).integers(0, 1 << 60, (2, 1_000_000))
    data = npz({"a": numbers[0], "b": numbers[1]}, compressed=compressed)
    made = make(NPZ_CONVERTER, data, ROWS_ONLY)
    assert (made.index.sample_count, made.index.fields) == (1_000_000, ())
    assert made.fetched_bytes < len(data) / 5


def test_npz_of_many_small_arrays_is_read_whole() -> None:
    """It is fetched sooner than their headers."""
    data = npz({f"a{number}": np.arange(200_000) for number in range(3)} | {"b": np.arange(200_000)})
    assert make(NPZ_CONVERTER, data, ROWS_ONLY).fetched_bytes < len(data)
    small = npz({f"a{number}": np.arange(20_000) for number in range(30)})
    assert make(NPZ_CONVERTER, small, ROWS_ONLY).fetched_bytes == len(small)


def test_npz_without_arrays_of_numbers_has_no_rows_to_count() -> None:
    """As if its columns were read."""
    data = npz({"a": np.array([{}, {}], object)})
    counted, read = make(NPZ_CONVERTER, data, ROWS_ONLY).index, make(NPZ_CONVERTER, data).index
    assert counted.sample_count == read.sample_count == 0
    assert counted.unread == read.unread != ()


def test_a_header_longer_than_the_first_look_is_fetched() -> None:
    """Of many samples, the offsets take more than 64 KiB."""
    name, data = shard("mds", 20_000, 100)
    made = make(COUNT_CONVERTER, data, name)
    assert made.index.sample_count == 20_000
    assert 4 * 20_000 < made.fetched_bytes < 5 * 20_000


def test_members_that_are_no_fields_are_told() -> None:
    """As the whole tar tells them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("readme", "a.bin", "b.bin"):
            member = tarfile.TarInfo(name)
            member.size = 2 * _MIB
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    made = make(COUNT_CONVERTER, file.getvalue(), "tar")
    assert made.index.sample_count == 2
    assert made.index.unread == (("readme", "a member of a tar without an extension"),)


@pytest.mark.parametrize("shift", [5000, -5000])
def test_npz_whose_members_lie_outside_of_it_is_a_bad_shard(shift: int) -> None:
    """The directory may place them before the file's start, or behind its end."""
    data = bytearray(npz({"a": np.arange(300_000), "b": np.arange(300_000)}))
    end = data.rfind(b"PK\5\6") + 16
    data[end : end + 4] = (int.from_bytes(data[end : end + 4], "little") + shift).to_bytes(4, "little")
    with pytest.raises(BadShard):
        make(NPZ_CONVERTER, bytes(data), ROWS_ONLY)
