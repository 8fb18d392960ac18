"""A listing cut into ranges: all keys, each once, in order, and with few requests more."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.fetch.s3.listing import KeyRange, KeyRanges

PAGE = 10


class Lister:
    """Lists sorted keys as the daemon does, a number of ranges in each round trip."""

    def __init__(self, keys: list[str], prefix: str, in_flight: int, page: int = PAGE) -> None:
        self._keys, self._page, self._in_flight = sorted(keys), page, in_flight
        self._ranges = KeyRanges(prefix, "")
        self.request_count = self.round_count = 0

    def run(self) -> list[str]:
        """Return the keys as the ranges bring them."""
        found: dict[KeyRange, list[str]] = {}
        begun = list(self._ranges.ranges)
        every = list(begun)
        while begun:
            self.round_count += 1
            for one in begun:
                self.request_count += 1
                start = bisect.bisect_right(self._keys, one.position or one.after)
                page = self._keys[start : start + self._page]
                found.setdefault(one, []).extend(page)
                more = start + self._page < len(self._keys)
                self._ranges.listed(one, *((page[0], page[-1]) if page else ("", "")), more=more)
            begun = [one for one in self._ranges.ranges if not one.done]
            while len(begun) < self._in_flight and (new := self._ranges.split()) is not None:
                begun.append(new)
                every.append(new)
        whole: list[str] = []
        for one in self._ranges.ranges:
            whole += [key for key in found[one] if one.end is None or key <= one.end]
        return whole


@given(
    st.one_of(
        st.sets(st.text(min_size=1, max_size=6), max_size=400),
        st.sets(st.integers(0, 5000).map("{:05d}.tar".format), max_size=400),
        st.sets(st.integers(0, 5000).map(str), max_size=400),
        st.sets(st.text("ab/", min_size=1, max_size=9), max_size=400),
    ),
    st.sampled_from(["", "p/", "p/0"]),
    st.integers(1, 20),
)
def test_every_key_comes_once_and_in_order(names: set[str], prefix: str, in_flight: int) -> None:
    """Whatever the keys look like: guesses decide how the work is shared, and nothing else."""
    keys = [prefix + name for name in names]
    assert Lister(keys, prefix, in_flight).run() == sorted(keys)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"shard-{number:08d}.tar" for number in range(2000)], id="padded"),
        pytest.param([f"shard-{number}.tar" for number in range(2000)], id="unpadded"),
        pytest.param([f"{number * 2654435761 % (1 << 32):08x}.bin" for number in range(2000)], id="hex"),
        pytest.param([f"class-{number % 40:02d}/{number:06d}.jpg" for number in range(2000)], id="folders"),
        pytest.param([f"{half}-{number:05d}.tar" for half in ("ab", "b") for number in range(1000)], id="splits"),
    ],
)
def test_long_listings_take_fewer_round_trips(names: list[str]) -> None:
    """200 pages take at most a third of the round trips, and at most a tenth more requests."""
    lister = Lister([f"p/{name}" for name in names], "p/", in_flight=16)
    assert len(lister.run()) == 2000
    assert lister.request_count <= 220
    assert lister.round_count <= 66


def test_short_listings_are_not_split() -> None:
    """Of four pages, no request is in vain."""
    lister = Lister([f"p/{number:03d}" for number in range(40)], "p/", in_flight=16)
    lister.run()
    assert lister.request_count == 4
