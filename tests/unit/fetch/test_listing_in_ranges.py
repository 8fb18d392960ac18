"""Pages of several ranges at a time: the same objects as one after another, whatever a store does."""

from __future__ import annotations

import asyncio
import bisect
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadResponse, FeeddError, StoreUnavailable, Throttled, Unsupported
from feedd.fetch.s3 import listing as s3_listing
from feedd.fetch.s3.errors import RequestContext
from feedd.fetch.s3.listing import RangeListing
from tests.budget import budget
from tests.fakes.s3.listing_pages import listing_page, page_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from feedd.fetch.s3.listing import Ask, Page

KEYS = [f"p/{number:06d}.tar" for number in range(500)]
PAGE = 10


class Store:
    """Answers as a store does, after a turn of the loop.

    Attributes:
        ignores: whether it ignores where a listing shall begin.
        late: turns of the loop that pass before the first page of a range comes.
        failures: errors to raise, by the number of the request.
        page: keys of a page.
        keys: all keys.
        most: the largest number of requests at the same time.
        tokens: whether its truncated pages have continuation tokens.
        damage: what becomes of its answers, by the number of the request.
    """

    def __init__(
        self, *, ignores: bool = False, late: int = 1, failures: dict[int, Exception] | None = None, page: int = PAGE
    ) -> None:
        self.ignores, self.late, self.failures, self.page = ignores, late, failures or {}, page
        self.keys = KEYS
        self.tokens = True
        self.damage: dict[int, Callable[[bytes], bytes]] = {}
        self.request_count = self.most = self._now = 0

    async def ask(self, query: Mapping[str, str]) -> Page:
        self.request_count += 1
        number, self._now = self.request_count, self._now + 1
        self.most = self._now if number - 1 in self.failures else max(self.most, self._now)
        for _ in range(self.late if "StartAfter" in query else 1):
            await asyncio.sleep(0)
        self._now -= 1
        if number in self.failures:
            raise self.failures[number]
        after = query.get("ContinuationToken") or ("" if self.ignores else query.get("StartAfter", ""))
        start = bisect.bisect_right(self.keys, after)
        keys = self.keys[start : start + self.page]
        more = start + self.page < len(self.keys)
        body = listing_page(keys, token=keys[-1] if more and self.tokens else "", more=more)
        return page_from(self.damage.get(number, bytes)(body), "p/")


async def _listed(store: Store, in_flight: int = 16, start_after: str = "") -> list[str]:
    return await _listed_by(store.ask, in_flight, start_after)


async def _listed_by(ask: Ask, in_flight: int = 16, start_after: str = "") -> list[str]:
    listing = RangeListing(ask, "p/", start_after, in_flight)
    return [
        one.key
        async for page, end in listing.pages()
        for one in s3_listing.objects_of(page)
        if end is None or one.key <= end
    ]


async def test_several_pages_are_requested_at_the_same_time() -> None:
    """Fifty pages, at most a few requests more, never more at once than allowed."""
    store = Store()
    assert await _listed(store) == KEYS
    assert 4 < store.most <= 16
    assert store.request_count <= 60
    serial = Store()
    assert await _listed(serial, in_flight=1) == KEYS
    assert (serial.most, serial.request_count) == (1, 50)


async def test_a_listing_goes_on_after_a_key() -> None:
    """As after a broken one."""
    assert await _listed(Store(), start_after=KEYS[99]) == KEYS[100:]


@pytest.mark.parametrize("late", [1, 1000])
@pytest.mark.parametrize("page", [7, 10, 13])
async def test_a_store_that_ignores_where_to_begin_is_listed_in_order(late: int, page: int) -> None:
    """Its first range goes on alone, and no key is lost or comes twice, though it passes the place before that."""
    store = Store(ignores=True, late=late, page=page)
    assert await _listed(store) == KEYS
    assert store.request_count <= len(KEYS) / page + 5


@pytest.mark.parametrize("late", [20, 40, 100, 400])
async def test_a_page_beyond_its_range_waits_until_the_store_is_known(late: int) -> None:
    """The place is guessed among the keys. A store that ignores it may answer after the first range has passed it."""
    for page in (3, 7):
        store = Store(ignores=True, late=late, page=page)
        store.keys = [f"p/{number:03d}" for number in range(0, 1000, 3)]
        assert await _listed(store) == store.keys
        honest = Store(late=late, page=page)
        honest.keys = store.keys
        assert await _listed(honest) == store.keys


@pytest.mark.parametrize("number", range(5, 30, 3))
async def test_a_refused_page_is_requested_again_when_its_turn_comes(number: int) -> None:
    """A page of a later range may fail once; a page of the first one ends the listing, and the caller goes on."""
    store = Store(failures={number: Throttled("slow down")})
    try:
        assert await _listed(store) == KEYS
    except Throttled:
        return
    assert store.request_count > number


async def test_a_page_that_stays_away_is_an_error() -> None:
    """Of whatever range."""
    store = Store(failures={number: StoreUnavailable("gone") for number in range(9, 200)})
    with pytest.raises(StoreUnavailable, match="gone"):
        await _listed(store)


async def test_a_refused_page_halves_the_requests_at_the_same_time() -> None:
    """The store may be asked for too much."""
    store = Store(late=5, failures={20: Throttled("slow down")}, page=2)
    assert await _listed(store) == KEYS
    assert store.most <= 8


async def test_pages_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ranges wait while the first one is slow; then they go on."""
    monkeypatch.setattr(s3_listing, "_BUFFERED_MAX", 5)
    gate = asyncio.Event()
    store = Store()
    waiting: list[int] = []

    async def ask(query: Mapping[str, str]) -> Page:
        if query.get("ContinuationToken", "z") < KEYS[100]:  # the first range
            waiting.append(store.request_count)
            if len(waiting) > 5:
                await gate.wait()
        return await store.ask(query)

    listing = asyncio.ensure_future(_listed_by(ask))
    for _ in range(500):
        await asyncio.sleep(0)
    held = store.request_count
    gate.set()
    assert await listing == KEYS
    assert held < 5 + 5 + 16 < store.request_count


@pytest.mark.parametrize("in_flight", [1, 16])
async def test_a_store_without_tokens_is_listed_by_its_last_keys(in_flight: int) -> None:
    """A truncated page without a token is followed by the keys after its last one, until none are left."""
    store = Store()
    store.tokens = False
    assert await _listed(store, in_flight) == KEYS
    assert await _listed(store, in_flight, start_after=KEYS[99]) == KEYS[100:]


@pytest.mark.parametrize("in_flight", [1, 16])
@pytest.mark.parametrize("page", [7, 100])
async def test_a_store_that_cannot_go_on_is_refused(in_flight: int, page: int) -> None:
    """Without tokens and without regard for where a listing shall begin, only the first page can be had."""
    store = Store(ignores=True, page=page)
    store.tokens = False
    with pytest.raises(Unsupported, match=r"a truncated page had no continuation token .*only ListObjects V1"):
        await _listed(store, in_flight)
    assert store.request_count <= 3


async def test_empty_pages_are_followed_and_their_tokens_must_be_new() -> None:
    """Stores with many deleted versions send truncated pages without keys; a circle of tokens would never end."""
    tokens = [*(f"t{number}" for number in range(30)), "t7"]

    async def ask(query: Mapping[str, str]) -> Page:
        at = tokens.index(query["ContinuationToken"]) + 1 if "ContinuationToken" in query else 0
        at = 4 if "StartAfter" in query else at
        asked.append(at)
        keys = ["p/a"] if at == 3 else []
        return page_from(listing_page(keys, token=tokens[at], more=at < last), "p/")

    last, asked = 29, list[int]()
    assert await _listed_by(ask) == ["p/a"]
    assert asked == [*range(30), *range(4, 30)]  # the empty end is doubted once
    last = 100
    with pytest.raises(BadResponse, match="a new continuation token, got one that was used before"):
        await _listed_by(ask)


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("in_flight", [1, 16])
@pytest.mark.parametrize("count", [20, 200])
async def test_an_empty_end_is_asked_about_once(ignores: bool, in_flight: int, count: int) -> None:
    """A server that does not know a token, and ends the listing, loses no keys; a real end costs one request."""
    store = Store(ignores=ignores)
    store.keys = KEYS[:count]

    async def ask(query: Mapping[str, str]) -> Page:
        if query.get("ContinuationToken") in unknown:
            store.request_count += 1
            return page_from(listing_page([]), "p/")
        found = await store.ask(query)
        ends = found.last == store.keys[-1]  # a full last page is truncated, as some stores have it
        return replace(found, truncated=True, token=found.last) if ends else found

    unknown = {KEYS[count - 1]}
    assert await _listed_by(ask, in_flight) == store.keys
    unknown.add(KEYS[9])
    if not ignores:
        assert await _listed_by(ask, in_flight) == store.keys


async def test_a_truncated_page_with_neither_keys_nor_token_is_refused() -> None:
    """Nothing says how the listing goes on."""

    async def ask(_: Mapping[str, str]) -> Page:
        return page_from(listing_page([], more=True), "p/")

    with pytest.raises(BadResponse, match="expected keys or a continuation token in a truncated page, got neither"):
        await _listed_by(ask)


_DAMAGE = {
    "cut": lambda body: body[: len(body) // 2],
    "html": lambda _: b"<!doctype html><html><title>Sign in</title></html>",
    "empty": lambda _: b"",
    "no token": lambda body: re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", body),
    "no end": lambda body: re.sub(rb"<IsTruncated>.*?</IsTruncated>", b"", body),
    "an object lost": lambda body: re.sub(rb"<Contents>.*?</Contents>", b"", body, count=1),
    "all objects lost": lambda body: re.sub(rb"<Contents>.*</Contents>", b"", body),
    "an object twice": lambda body: re.sub(rb"(<Contents>.*?</Contents>)", rb"\1\1", body, count=1),
    "the first object last": lambda body: re.sub(rb"(<Contents>.*?</Contents>)(.*)(</List)", rb"\2\1\3", body),
}


@settings(max_examples=budget(150), deadline=None)
@given(
    st.dictionaries(st.integers(1, 70), st.sampled_from(sorted(_DAMAGE)), max_size=8),
    st.sampled_from([1, 4, 16]),
    st.booleans(),
    st.booleans(),
)
def test_a_listing_of_damaged_pages_is_whole_or_an_error(
    damage: dict[int, str], in_flight: int, has_tokens: bool, ignores: bool
) -> None:
    """Whatever happens to which pages, and whatever the store knows: all keys in order, or an error."""
    store = Store(ignores=ignores)
    store.tokens = has_tokens
    store.damage = {number: _DAMAGE[name] for number, name in damage.items()}
    try:
        found = asyncio.run(_read(store, in_flight))
    except FeeddError:
        assert damage or (ignores and not has_tokens)
        return
    assert found == KEYS


async def _read(store: Store, in_flight: int) -> list[str]:
    """Read a listing as a bucket's is read, its order included."""
    order = s3_listing._Order(RequestContext("list", "s3://b/p/", ""), "")
    listing = RangeListing(store.ask, "p/", "", in_flight)
    refs = [ref async for page, end in listing.pages() for ref in order.keep(s3_listing._refs(page, end, "s3://b"))]
    return [ref.key for ref in refs]
