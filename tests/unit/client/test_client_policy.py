"""Which samples a run takes, as the client says and hears it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import BadOptionError, Ragged, Shuffle
from feedd_client._wire import feedd_pb2 as pb
from feedd_client.batch import BatchDecoder
from feedd_client.errors import BadRecipeError, ProtocolError

if TYPE_CHECKING:
    from tests.fakes.feed_client import Bench

_UNLIMITED = (1 << 32) - 1


@pytest.mark.parametrize(
    ("options", "policy", "budget"),
    [
        ({}, "", 0),
        ({"max_bad_samples": 5}, "", 5),
        ({"bad_samples": "error"}, "error", 0),
        ({"bad_samples": "skip"}, "skip", _UNLIMITED),
        ({"bad_samples": "skip", "max_bad_samples": 0}, "skip", 0),
        ({"bad_samples": "replace", "max_bad_samples": 9}, "replace", 9),
        ({"bad_samples": "quarantine"}, "quarantine", _UNLIMITED),
    ],
)
def test_policies_travel(bench: Bench, options: dict[str, Any], policy: str, budget: int) -> None:
    """A policy that is named has no bound unless one is given; what older clients say means what it meant."""
    server = bench.server(steps=1)
    for batch in bench.dataset(server, **options):
        assert ("__valid__" in batch) == (policy == "replace")
    (request,) = server.opens
    assert (request.recipe.bad_samples, request.recipe.bad_samples_max) == (policy, budget)


def test_filters_and_buckets_travel(bench: Bench) -> None:
    """As canonical JSON, one for each condition."""
    server = bench.server(steps=1)
    conditions = [{"min_bytes": 1, "field": "txt"}, {"field": "score", "max": 0.5}]
    for _ in bench.dataset(server, filter=conditions, shuffle=Shuffle(bucket_by="txt")):
        pass
    (request,) = server.opens
    assert list(request.recipe.filters) == ['{"field":"txt","min_bytes":1}', '{"field":"score","max":0.5}']
    assert (request.shuffle.enabled, request.shuffle.bucket_by) == (True, "txt")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"url": "channel://train"}, ["shuffle", "seed", "sharding"]),
        ({"url": "channel://train", "shuffle": False, "sharding": "key"}, ["seed"]),
        ({"url": "channel://train", "seed": 0}, ["shuffle", "sharding"]),
        ({}, []),
    ],
)
def test_what_is_left_to_a_channel_travels(bench: Bench, options: dict[str, Any], left: list[str]) -> None:
    """Arguments that the user left out, and only of channels; their defaults travel as before."""
    server = bench.server(steps=1)
    for _ in bench.dataset(server, **options):
        pass
    (request,) = server.opens
    assert list(request.left_to_channel) == left
    assert (request.shuffle.enabled, request.seed, request.sharding) == (False, 0, "key")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"bad_samples": "ignore"}, "bad_samples"),
        ({"max_bad_samples": True}, "max_bad_samples"),
        ({"max_bad_samples": 1 << 32}, "max_bad_samples"),
        ({"bad_samples": "error", "max_bad_samples": 1}, "max_bad_samples"),
        ({"shuffle": Shuffle(bucket_by="")}, "shuffle"),
    ],
)
def test_policies_that_cannot_work_are_refused(bench: Bench, options: dict[str, Any], named: str) -> None:
    """By the constructor, naming the argument."""
    with pytest.raises(BadOptionError) as caught:
        bench.dataset("unix:///nowhere/feedd.sock", **options)
    assert caught.value.object == named


@pytest.mark.parametrize("given", [["txt"], [1], [{"field": object()}]])
def test_filters_are_mappings(bench: Bench, given: list[Any]) -> None:
    """What JSON cannot say is refused by the constructor."""
    with pytest.raises(BadRecipeError):
        bench.dataset("unix:///nowhere/feedd.sock", filter=given)


@pytest.mark.slow
def test_many_batches_may_be_empty(bench: Bench) -> None:
    """Single samples go on past any number of batches that filters left nothing of."""
    server = bench.server(steps=1500, last_rows=2, hollow=True, specs="ids", slot_count=16)
    singles = bench.dataset(server, batch_size=None)
    assert [int(sample["cls"]) for sample in singles] == [1499 * 64, 1499 * 64 + 1]
    assert singles.stats()["samples"] == 2


def test_padded_fields_are_views_of_their_batch() -> None:
    """Each batch says how large its rows are; one that does not, or a kind nobody knows, is an error and no guess."""
    decoder = BatchDecoder([pb.TensorSpec(name="x", kind=pb.TensorSpec.PADDED, dtype="int16", ndim=2)])
    payload = np.arange(24, dtype=np.int16).view(np.uint8)
    (batch,) = decoder.decode(payload, [pb.FieldRegion(values_at=0, values_bytes=48, dims=[4, 3])], 2)
    block = batch["x"]
    assert isinstance(block, torch.Tensor)
    assert torch.equal(block, torch.arange(24, dtype=torch.int16).view(2, 4, 3))
    assert block.data_ptr() == payload.ctypes.data
    empty = decoder.decode(payload, [pb.FieldRegion(values_at=48, dims=[0, 3])], 2)[0]["x"]
    assert isinstance(empty, torch.Tensor)
    assert empty.shape == (2, 0, 3)
    for dims, rows in (([4], 2), ([4, 3, 1], 2), ([], 2), ([400, 3], 2), ([4, 3], 3)):
        with pytest.raises(ProtocolError):
            decoder.decode(payload, [pb.FieldRegion(values_at=0, dims=dims)], rows)
    with pytest.raises(ProtocolError, match="kind"):
        BatchDecoder([pb.TensorSpec(name="x", kind=99, dtype="int16")])  # type: ignore[arg-type]  # of a newer daemon


def test_ragged_fields_can_be_padded() -> None:
    """To their longest, or to a length, with a mask; without values, too; never where there are several dimensions."""
    ragged = Ragged(torch.arange(1, 7, dtype=torch.int16), torch.tensor([0, 2, 2, 6]))
    block, mask = ragged.padded(-1)
    assert block.tolist() == [[1, 2, -1, -1], [-1] * 4, [3, 4, 5, 6]]
    assert mask.tolist() == [[True, True, False, False], [False] * 4, [True] * 4]
    assert block.dtype == torch.int16
    assert ragged.padded(0, 3)[0].tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert ragged.padded(0, 6)[1].sum() == 6
    assert Ragged(torch.empty(0), torch.tensor([0])).padded()[0].shape == (0, 0)
    with pytest.raises(ValueError, match="several"):
        Ragged(torch.empty(0), torch.tensor([0]), torch.empty(0, 2)).padded()
