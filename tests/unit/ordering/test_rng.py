"""Random numbers that must never change."""

from __future__ import annotations

import numpy as np
import pytest

from feedd.ordering import rng


def test_stream_is_splitmix64() -> None:
    """The stream of key 1234567 is the published SplitMix64 sequence."""
    words = rng.stream(1234567, np.arange(5))
    assert words.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_scalar_and_vector_agree() -> None:
    """One word computed alone equals the same word of a vector."""
    key = rng.derive(1, 2, 3)
    words = rng.stream(key, np.arange(100))
    assert all(rng.finalize(key + (i + 1) * rng.GAMMA) == int(word) for i, word in enumerate(words))


@pytest.mark.parametrize("shape", [(), (0,), (8191,), (8192,), (8193,), (3, 5000), (30_000,)])
def test_a_stream_is_the_same_however_its_counters_lie(shape: tuple[int, ...]) -> None:
    """Long ones are worked out in pieces, and none of their counters is written to."""
    counters = np.arange(30_000)[: int(np.prod(shape))].reshape(shape)
    words = rng.stream(5, counters)
    assert words.shape == shape
    assert words.reshape(-1).tolist() == [rng.finalize(5 + (n + 1) * rng.GAMMA) for n in range(counters.size)]
    assert rng.stream(5, np.array(counters, order="F")).tolist() == words.tolist()
    assert rng.stream(5, words).tolist() == rng.stream(5, words.copy()).tolist()


def test_permutation_vector_is_pinned() -> None:
    """A stored permutation stays what it was, whatever numpy release runs it."""
    assert rng.permutation(10, rng.derive(rng.SAMPLES, 7, 3, 1)).tolist() == PINNED
    assert rng.derive(rng.SHARDS, 0, 0) == PINNED_KEY


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1024, 4095, 4096, 200_000])
@pytest.mark.slow
def test_permutation_sorts_whole_words(count: int) -> None:
    """However many there are, the order is that of the words: 200,000 of them agree in upper halves some times."""
    words = rng.stream(77, np.arange(count))
    assert count < 200_000 or np.unique(words >> np.uint64(32)).shape[0] < count
    found = rng.permutation(count, 77).tolist()
    assert found == sorted(range(count), key=words.tolist().__getitem__)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8191, 8192, 8193, 50_001])
def test_a_narrow_permutation_is_the_same(count: int) -> None:
    """It has the same numbers in half of the memory, also where two words had to be sorted whole."""
    found = rng.narrow_permutation(count, 77)
    assert found.dtype == np.int32
    assert found.tolist() == rng.permutation(count, 77).tolist()
    assert found.base is not None
    assert found.base.nbytes <= 4 * count + 4


def test_words_that_differ_in_their_lowest_bits_alone_are_sorted() -> None:
    """Runs of any length are put right, beside others and at both ends."""
    words = np.array([high << 32 | low for high in range(1000) for low in (5, 4, 3, 2, 1)], dtype=np.uint64)
    assert words[rng.ascending(words)].tolist() == sorted(words.tolist())


@pytest.mark.parametrize("place", [0, 8190, 8191, 8192, 16_383, 19_998])
def test_two_words_that_differ_in_their_lowest_bits_alone_are_sorted(place: int) -> None:
    """It does not matter where they lie among the others: words are sorted whole, and compared in pieces."""
    words = np.arange(1, 20_001, dtype=np.uint64) << np.uint64(40)
    words[place : place + 2] = words[place] + np.array([1, 0], np.uint64)
    assert rng.ascending(words).tolist() == np.argsort(words).tolist()


def test_permutation_is_one() -> None:
    """Every index comes exactly once, and another key gives another order."""
    one, two = rng.permutation(1000, 1), rng.permutation(1000, 2)
    assert sorted(one.tolist()) == list(range(1000))
    assert one.tolist() != two.tolist()


def test_places_are_uniform() -> None:
    """Where index 0 lands over 4,000 keys is flat: chi-square over 8 places stays below the 0.1 % bound."""
    seen = np.zeros(8)
    for key in range(4000):
        seen[int(np.flatnonzero(rng.permutation(8, rng.derive(9, key)) == 0)[0])] += 1
    assert float(((seen - 500) ** 2 / 500).sum()) < 24.3


PINNED = [6, 2, 5, 7, 9, 0, 1, 4, 3, 8]
PINNED_KEY = 12793040940332582595
