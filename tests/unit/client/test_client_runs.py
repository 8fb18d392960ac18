"""Batches of a run are decoded together, and behave as if each was decoded alone."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from feedd_client._wire import feedd_pb2 as pb
from feedd_client.batch import BatchDecoder, RunBatches
from feedd_client.errors import ProtocolError

ROWS, COUNT, BATCH_BYTES = 3, 70, 128
SPECS = [
    pb.TensorSpec(name="number", kind=pb.TensorSpec.DENSE, dtype="int64"),
    pb.TensorSpec(name="pair", kind=pb.TensorSpec.DENSE, dtype="float32", shape=[2]),
    pb.TensorSpec(name="flag", kind=pb.TensorSpec.DENSE, dtype="uint8"),
]
MESSAGE = pb.Batch(
    rows=ROWS,
    regions=[
        pb.FieldRegion(values_at=0, values_bytes=24),
        pb.FieldRegion(values_at=24, values_bytes=24),
        pb.FieldRegion(values_at=48, values_bytes=3),
    ],
)


def _payload(batch_bytes: int = BATCH_BYTES) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    source = np.random.default_rng(0)
    return source.integers(0, 100, 8 + COUNT * batch_bytes, np.uint8)


@pytest.mark.parametrize("batch_bytes", [128, 52, 51], ids=["aligned", "of 4 bytes", "odd"])
def test_a_run_is_decoded_as_its_batches_are(batch_bytes: int) -> None:
    """Each batch of a run has the values that it has alone, at any distance between batches."""
    decoder, payload = BatchDecoder(SPECS), _payload(batch_bytes)
    batches = RunBatches(decoder, payload, MESSAGE, 8, COUNT, batch_bytes)
    for number in range(COUNT):
        assert len(batches) == COUNT - number
        batch = batches.take()
        (alone,) = decoder.decode(payload, MESSAGE.regions, ROWS, 8 + number * batch_bytes)
        assert list(batch) == list(alone)
        for name, value in alone.items():
            assert batch[name].shape == value.shape
            assert batch[name].numpy().tobytes() == value.numpy().tobytes()
    assert not batches


def test_a_change_of_a_batch_changes_no_other() -> None:
    """A batch of a run may be changed in place, also together with parameters: other batches need no gradient then."""
    weight = pb.TensorSpec(name="number", kind=pb.TensorSpec.DENSE, dtype="float32")
    message = pb.Batch(rows=ROWS, regions=MESSAGE.regions[:1])
    batches = RunBatches(BatchDecoder([weight]), _payload(), message, 0, 4, BATCH_BYTES)
    first, second = batches.take(), batches.take()
    first["number"] += torch.ones(ROWS, requires_grad=True)
    assert first["number"].requires_grad
    assert not second["number"].requires_grad
    assert not batches.take()["number"].requires_grad


def test_a_run_is_free_once_its_batches_are_dropped() -> None:
    """The slot of a run returns when the trainer drops the last batch that it holds, and all were taken."""
    payload = _payload()
    alive = weakref.ref(payload)
    batches = RunBatches(BatchDecoder(SPECS), payload, MESSAGE, 0, COUNT, BATCH_BYTES)
    del payload
    for _ in range(COUNT - 1):
        batches.take()
    assert alive() is not None
    held = batches.take()
    assert alive() is not None
    del held
    assert alive() is None


def test_a_run_beyond_its_payload_is_refused() -> None:
    """No batch reads memory outside of its payload."""
    batches = RunBatches(BatchDecoder(SPECS), _payload()[: 2 * BATCH_BYTES], MESSAGE, 0, 3, BATCH_BYTES)
    with pytest.raises(ProtocolError, match="expected every field within 256 bytes"):
        batches.take()
