"""A mixture's parts of the order that are stored for good, and steps that are asked for beyond all reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from feedd.errors import BadRequest
from feedd.open_spec import SourceSpec
from feedd.ordering import mixed_reader as mixed
from feedd.ordering import mixing, rng
from feedd.ordering.batch_plan import BatchRows
from feedd.ordering.mixed_reader import MixedReader, source_seed, weights_of
from feedd.values import Cursor, EpochEnd, Topology
from tests.fakes.specs import open_spec
from tests.model.test_mixed_model import Mix, samples

if TYPE_CHECKING:
    from feedd.dataset.packs import Packs

SPEC = open_spec(("s3://b/",), 6, shuffle=True, seed=7, mix="sample")
TWINS = Mix(((9,) * 6, (9,) * 6), {0: (1, 1)}, SPEC)


def test_orders_are_pinned() -> None:
    """Domains, seeds of sources and the first batches of two epochs stay what they are in every release."""
    domains = [mixed.SOURCES, mixed.PARTITIONS, mixing.MIX, rng.SHARDS, rng.SAMPLES, rng.AUGMENT]
    assert domains == [17, 18, 16, 1, 2, 3]
    assert [source_seed(7, source) for source in range(2)] == SEEDS
    reader = TWINS.reader(Topology())
    for epoch, expected in enumerate(PINNED):
        rows = reader.rows(Cursor(epoch, 1))
        assert isinstance(rows, BatchRows)
        assert [(shard, ordinal) for shard, ordinal, _ in samples(rows)] == expected
        assert rows.cursor == Cursor(epoch, 1)


def test_the_same_data_twice_is_not_shuffled_alike() -> None:
    """Two sources of as many shards and samples are in orders of their own: pairs would be side by side else."""
    reader = TWINS.reader(Topology())
    one, two = reader.orders(Cursor(0))
    assert [shard - 6 for shard in two] != one
    taken = [sample for step in range(reader.steps(0)) for sample in samples(_rows(reader, step))]
    firsts = [(shard, ordinal, seed) for shard, ordinal, seed in taken if shard < 6]
    others = [(shard - 6, ordinal, seed) for shard, ordinal, seed in taken if shard >= 6]
    assert {sample[:2] for sample in firsts} == {sample[:2] for sample in others}
    assert sum(one[:2] == two[:2] for one, two in zip(firsts, others, strict=False)) < len(firsts) / 4
    assert not {sample[2] for sample in firsts} & {sample[2] for sample in others}


def test_windows_of_a_mixture_grow_without_packs() -> None:
    """The first pass of each source begins with windows of one shard, unless the dataset has packs."""
    view = TWINS.view()
    packed = replace(view.listing, packs=(cast("Packs", None),), _as_listed=None).as_listed
    widths = []
    for its in (view, packed):
        ((_, streams),) = TWINS.plan(Topology(), 2, its).partitions
        widths.append([[np.diff(stream._map(epoch).edges).tolist() for epoch in (0, 1)] for stream in streams])
    assert widths == [[[[1, 2, 2, 1], [2, 2, 2]]] * 2, [[[2, 2, 2]] * 2] * 2]


def _rows(reader: MixedReader, step: int) -> BatchRows:
    rows = reader.rows(Cursor(0, step))
    assert isinstance(rows, BatchRows)
    return rows


def test_what_no_run_comes_to_is_an_end_or_refused() -> None:
    """A step beyond the epoch is its end; an epoch beyond all reason is an error, not a wrong batch."""
    reader = TWINS.reader(Topology())
    steps = reader.steps(0)
    assert reader.rows(Cursor(3, 1 << 62)) == EpochEnd(3, steps)
    assert isinstance(reader.rows(Cursor(1 << 40, 2, ((5, 5),))), BatchRows)
    with pytest.raises(BadRequest, match="an epoch that begins within"):
        reader.rows(Cursor(1 << 60))


def test_weights_of_all_sources_by_epoch() -> None:
    """Where one source's weight changes, the others keep theirs."""
    sources = [SourceSpec(("a",), (), ((0, 1.0), (4, 2.0))), SourceSpec(("b",), (), ((0, 0.0), (2, 5.0), (4, 6.0)))]
    assert weights_of(sources) == {0: (1.0, 0.0), 2: (1.0, 5.0), 4: (2.0, 6.0)}


def test_a_plan_serves_several_readers() -> None:
    """Two readers of one plan, in different epochs, give what each gives alone."""
    plan = TWINS.plan(Topology(), 2)
    one, two = MixedReader(plan), MixedReader(plan)
    for step in range(4):
        for reader, epoch in ((one, 0), (two, 5)):
            rows, alone = reader.rows(Cursor(epoch, step)), TWINS.reader(Topology()).rows(Cursor(epoch, step))
            assert isinstance(rows, BatchRows)
            assert isinstance(alone, BatchRows)
            assert samples(rows) == samples(alone)


SEEDS = [14698914001266871196, 5923520649474376378]
PINNED = [[(5, 1), (5, 7), (8, 3), (5, 0), (8, 4), (5, 3)], [(5, 3), (7, 7), (5, 1), (2, 6), (6, 7), (6, 4)]]
