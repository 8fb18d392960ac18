"""Mixing as the client asks for it: what travels, what is refused at once, and states of other mixtures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import (
    BadOptionError,
    BadRecipeError,
    FeedDataset,
    Source,
    StateError,
)
from tests.fakes.feed_client import ids

if TYPE_CHECKING:
    from tests.fakes.feed_client import Bench

ONE = Source("s3://a/", weight=0.7)
TWO = Source(["s3://b/x/", "s3://b/y/"], weight={0: 0.3, 5: 1}, fields={"cls": {"decode": "int", "from": ["num"]}})


def test_sources_travel_whole(bench: Bench) -> None:
    """URLs, weights by epoch, own fields, mode and length reach the daemon; plain URLs stay what they were."""
    server = bench.server(steps=2)
    dataset = bench.dataset(server, url=[ONE, TWO], fields={"cls": "int"}, mix="batch", samples_per_epoch=64)
    assert len([ids(batch) for batch in dataset]) == 2
    asked = server.opens[-1]
    assert list(asked.urls) == []
    assert [list(source.urls) for source in asked.sources] == [["s3://a/"], ["s3://b/x/", "s3://b/y/"]]
    weights = [[(one.epoch, one.weight) for one in source.weights] for source in asked.sources]
    assert weights == [[(0, 0.7)], [(0, 0.3), (5, 1.0)]]
    assert [[(field.name, field.recipe) for field in source.fields] for source in asked.sources] == [
        [],
        [("cls", '{"decode":"int","from":["num"]}')],
    ]
    assert [(field.name, field.recipe) for field in asked.recipe.fields] == [("cls", "int")]
    assert (asked.mix.mode, asked.mix.samples_per_epoch) == ("batch", 64)
    assert (asked.version.major, asked.version.minor) == (1, 0)
    list(bench.dataset(server, url=ONE))
    assert len(server.opens[-1].sources) == 1
    list(bench.dataset(server))
    assert list(server.opens[-1].urls) == ["s3://bucket/train/"]
    assert not server.opens[-1].sources
    assert not server.opens[-1].HasField("mix")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"url": [ONE, "s3://b/"]}, "Source"),
        ({"url": []}, "a list of URLs"),
        ({"url": [Source("s3://a/", weight=-1)]}, "a number >= 0, got -1"),
        ({"url": [Source("s3://a/", weight=float("nan"))]}, "a number >= 0, got nan"),
        ({"url": [Source("s3://a/", weight=float("inf"))]}, "a number >= 0, got inf"),
        ({"url": [Source("s3://a/", weight="1")]}, "a number >= 0, got '1'"),  # type: ignore[arg-type]  # not one
        ({"url": [Source("s3://a/", weight={1: 1})]}, "epochs from 0 on"),
        ({"url": [Source("s3://a/", weight={})]}, "epochs from 0 on"),
        ({"url": [Source("s3://a/", weight={0: 1, -1: 1})]}, "epochs from 0 on"),
        ({"url": [Source("s3://a/", weight=0), Source("s3://b/", {0: 1, 4: 0})]}, "a positive weight in epoch 4"),
        ({"url": [Source("")]}, "one URL"),
        ({"url": [ONE], "mix": "both"}, "stratified, sample"),
        ({"url": "s3://a/", "mix": "batch"}, "a list of Source"),
        ({"url": "s3://a/", "samples_per_epoch": 10}, "a list of Source"),
        ({"url": [ONE], "samples_per_epoch": 0}, "None or >= 1"),
        ({"url": [ONE], "samples_per_epoch": 10, "steps": 3}, "no steps="),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], named: str) -> None:
    """Weights, modes and lists of no sense are errors of the constructor, before any daemon is asked."""
    with pytest.raises(BadOptionError, match=named):
        FeedDataset(**{"batch_size": 4, **arguments})


def test_fields_of_a_source_are_refused_at_once() -> None:
    """A source's fields are held to what a dataset's are."""
    with pytest.raises(BadRecipeError, match="two underscores"):
        FeedDataset([Source("s3://a/", fields={"__key__": "str"})], batch_size=4)


def test_a_state_of_another_mixture_is_refused_with_the_difference(bench: Bench) -> None:
    """Weights, fields, URLs, mode, length and kind of dataset are compared; the same mixture goes on."""
    server = bench.server(steps=3)

    def dataset(*sources: Source, **arguments: Any) -> FeedDataset:
        url = {"url": list(sources)} if sources else {}
        return bench.dataset(server, **url, **arguments, copy=True)

    first = dataset(ONE, TWO)
    taken = ids(next(iter(first)))
    state = json.loads(json.dumps(first.state_dict()))
    again = dataset(ONE, TWO)
    again.load_state_dict(state)
    assert [*taken, *(number for batch in again for number in ids(batch))] == list(range(12))
    assert first.state_dict().keys() == dataset(ONE, TWO).state_dict().keys()
    cases: list[tuple[FeedDataset, str]] = [
        (
            dataset(ONE, Source(TWO.url, {0: 0.3, 5: 2}, TWO.fields)),
            r"weights of source 1 \[\[0, 0.3\], \[5, 2.0\]\] as",
        ),
        (dataset(ONE, Source(TWO.url, TWO.weight)), "fields of source 1"),
        (dataset(Source("s3://c/", 0.7), TWO), r"urls of source 0 \['s3://c/'\] as now.*\['s3://a/'\]"),
        (dataset(ONE), "expected sources"),
        (dataset(ONE, TWO, mix="sample"), "expected mix 'sample' as now, got a state taken with 'stratified'"),
        (dataset(ONE, TWO, samples_per_epoch=8), "expected samples_per_epoch 8"),
        (dataset(), "expected mix None as now"),
    ]
    for other, words in cases:
        with pytest.raises(StateError, match=words):
            other.load_state_dict(state)
    with pytest.raises(StateError, match="expected mix 'stratified'"):
        dataset(ONE, TWO).load_state_dict(dataset().state_dict())
    damages: list[Any] = [[1, 2], [{}, {}], "x"]
    for damage in damages:
        with pytest.raises(StateError, match="source"):
            dataset(ONE, TWO).load_state_dict({**state, "sources": damage})


def test_a_plain_state_knows_nothing_of_mixtures(bench: Bench) -> None:
    """It is what it was before there were any: an older checkpoint has all its keys, and an older client takes it."""
    state = bench.dataset(bench.server(steps=3)).state_dict()
    assert not state.keys() & {"mix", "sources", "samples_per_epoch"}


def test_whole_batches_of_one_source_need_the_same_batches(bench: Bench) -> None:
    """Where a batch is one source's, the state of another batch size is refused, whatever all ranks take together."""
    server = bench.server(steps=3)
    state = bench.dataset(server, url=[ONE, TWO], mix="batch").state_dict()
    with pytest.raises(StateError, match="batch_size 8 as now"):
        bench.dataset(server, url=[ONE, TWO], mix="batch", batch_size=8).load_state_dict(state)
    even = bench.dataset(server, url=[ONE, TWO]).state_dict()
    bench.dataset(server, url=[ONE, TWO], batch_size=8).load_state_dict(even)
