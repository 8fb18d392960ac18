"""Batches that lie in a file of the daemon's cache become tensors of their own values, and nobody else's."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import shm
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.batch import AlikeBatches, BatchDecoder
from feedd_client.entries import EntryFiles, packed
from feedd_client.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd_client.leases import Payload

NUMBERS_AT, PAIRS_AT, COUNT, ROWS = 64, 4096, 400, 3
SPECS = (
    pb.TensorSpec(name="x", kind=pb.TensorSpec.DENSE, dtype="int64"),
    pb.TensorSpec(name="y", kind=pb.TensorSpec.DENSE, dtype="float32", shape=[2]),
)


@pytest.fixture
def file() -> Iterator[int]:
    """A file of 400 numbers and 400 pairs that begin with the number."""
    fd = os.memfd_create("entry")
    numbers = np.arange(COUNT, dtype=np.int64)
    os.pwrite(fd, numbers.tobytes(), NUMBERS_AT)
    os.pwrite(fd, np.stack((numbers, -numbers), axis=1).astype(np.float32).tobytes(), PAIRS_AT)
    yield fd
    os.close(fd)


@pytest.fixture
def files(file: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntryFiles]:
    """A pass's entries; whatever the token, the daemon sends the file."""
    monkeypatch.setattr(shm, "entry_file", lambda _path, _token: os.open(f"/proc/self/fd/{file}", os.O_RDONLY))
    entries = EntryFiles(usable=True)
    yield entries
    entries.close()


def _message(spacing: int = ROWS, **changes: Any) -> pb.Batch:
    size_bytes = PAIRS_AT + COUNT * 8
    fields: dict[str, Any] = {
        "rows": ROWS,
        "regions": [
            pb.FieldRegion(values_at=NUMBERS_AT, values_bytes=ROWS * 8),
            pb.FieldRegion(values_at=PAIRS_AT, values_bytes=ROWS * 8),
        ],
        "entry": pb.Entry(token=b"t" * 16, size_bytes=size_bytes, spacing_rows=spacing),
    }
    return pb.Batch(**fields | changes)


def _payload(files: EntryFiles, message: pb.Batch) -> Payload:
    return files.map(message.entry, "/nowhere")


def _open_count() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("spacing", [ROWS, ROWS + 4])
def test_batches_lie_at_their_distance(files: EntryFiles, spacing: int) -> None:
    """Rows of other ranks may lie between a rank's batches; numbers and vectors come whole and in order."""
    message = _message(spacing)
    found = AlikeBatches(BatchDecoder(SPECS), _payload(files, message), message, spacing, 40, 0)
    for number in range(1, 41):  # more than are decoded together
        batch = found.take()
        expected = list(range(number * spacing, number * spacing + ROWS))
        assert batch["x"].tolist() == expected
        assert batch["y"].tolist() == [[n, -n] for n in expected]
        assert batch["y"].untyped_storage().nbytes() == ROWS * 8
    assert not found


def test_a_trainer_writes_for_itself_alone(files: EntryFiles, file: int) -> None:
    """A batch may be changed in place. Neither the file nor a later mapping of it shows that."""
    message = _message()
    decoder = BatchDecoder(SPECS)
    batch = decoder.decode_one(_payload(files, message), message, 0)
    batch["x"].fill_(-1)
    assert np.frombuffer(os.pread(file, 24, NUMBERS_AT), np.int64).tolist() == [0, 1, 2]
    assert decoder.decode_one(_payload(files, message), message, 0)["x"].tolist() == [0, 1, 2]
    assert batch["x"].tolist() == [-1, -1, -1]


def test_a_packed_batch_is_a_copy(files: EntryFiles, file: int) -> None:
    """A batch that must outlive its lease is copied to memory of its own, with all of its fields."""
    payload, message = packed(_payload(files, _message()), _message(), 7)
    os.pwrite(file, bytes(PAIRS_AT), 0)
    assert not message.HasField("entry")
    assert message.size_bytes == payload.nbytes == 128
    batch = BatchDecoder(SPECS).decode_one(payload, message, 0)
    assert batch["x"].tolist() == [7, 8, 9]
    assert batch["y"][:, 1].tolist() == [-7, -8, -9]


def test_a_batch_that_reaches_beyond_its_entry_is_not_packed(files: EntryFiles) -> None:
    """Bytes that are not there are an error, as they are where the entry itself is used."""
    region = pb.FieldRegion(values_at=PAIRS_AT + COUNT * 8 - 1, values_bytes=ROWS * 8)
    message = _message(regions=[region, _message().regions[1]])
    with pytest.raises(ProtocolError, match="expected every field within"):
        packed(_payload(files, message), message, 0)


def test_batches_outlive_the_pass(files: EntryFiles) -> None:
    """The descriptors of a pass are closed at its end; its batches stay what they were."""
    message = _message()
    batch = BatchDecoder(SPECS).decode_one(_payload(files, message), message, 1)
    files.close()
    assert torch.equal(batch["x"], torch.tensor([1, 2, 3]))


def test_few_descriptors_are_open(files: EntryFiles) -> None:
    """However many files a pass reads, it keeps two of them open."""
    before = _open_count()
    for number in range(9):
        files.map(pb.Entry(token=bytes([number]) * 16, size_bytes=8, spacing_rows=1), "/nowhere")
    assert _open_count() == before + 2


def test_a_short_file_is_refused(files: EntryFiles) -> None:
    """Reading past the end of a mapped file would end the process, so its size is checked."""
    with pytest.raises(ProtocolError, match="expected a cache entry of"):
        files.map(pb.Entry(token=b"t" * 16, size_bytes=1 << 20), "/nowhere")


@pytest.mark.parametrize(
    "region",
    [
        pb.FieldRegion(values_at=PAIRS_AT + COUNT * 8 - 16, values_bytes=ROWS * 8),
        pb.FieldRegion(values_at=NUMBERS_AT + 1, values_bytes=ROWS * 8),
        pb.FieldRegion(values_at=NUMBERS_AT, values_bytes=ROWS * 4),
    ],
    ids=["outside", "unaligned", "width"],
)
def test_a_wrong_region_is_refused(files: EntryFiles, region: pb.FieldRegion) -> None:
    """A field outside the file, at an odd place or of another size is an error, not wrong data."""
    message = _message(regions=[region, _message().regions[1]])
    with pytest.raises(ProtocolError, match="expected every field within"):
        BatchDecoder(SPECS).decode_one(_payload(files, message), message, 0)


def test_a_refused_file_ends_the_use_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the daemon does not hand out a file, the next stream asks for copies."""

    def refuse(_path: str, _token: bytes) -> int:
        raise PermissionError("the daemon refused")

    monkeypatch.setattr(shm, "entry_file", refuse)
    entries = EntryFiles(usable=True)
    with pytest.raises(PermissionError):
        entries.map(_message().entry, "/nowhere")
    assert not entries.usable


def test_a_file_that_cannot_be_mapped_ends_the_use_of_entries(
    files: EntryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of memory refuses the mapping. It would refuse the next one too, so copies are asked for."""

    def refuse(*_arguments: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(OSError, match="allocate"):
        _payload(files, _message())
    assert not files.usable
