"""The object store suite over web servers and the Hugging Face Hub, as far as each can pass it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from feedd.fetch.fetch_options import SourceOptions
from feedd.fetch.web.hub import HubStore
from feedd.fetch.web.store import HttpStore
from tests.conformance import object_store_suite as suite
from tests.conformance.object_store_suite import Bed
from tests.fakes.hub import FakeHub
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_READS = {
    "test_head_of_missing_key",
    "test_read_into_fills_exactly_the_range",
    "test_large_read_is_exact",
    "test_deleted_object_is_not_found",
    "test_checksum_is_none_or_true",
    "test_progress_is_truthful",
    "test_cancelled_read_holds_nothing",
    "test_close_twice",
}
globals().update({name: test for name, test in vars(suite).items() if name in _READS})


@pytest.fixture(params=["http", "hub"])
async def bed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """Set up a web server, and a dataset on the Hub."""
    if request.param == "http":
        with S3Server() as server:
            server.create_bucket("bucket")
            store = HttpStore(server.url, SourceOptions())
            yield Bed(
                store,
                lambda name, data: server.put("bucket", name, data),
                lambda name: server.delete("bucket", name),
                lambda name: f"bucket/{quote(name)}",
                tells_progress=True,
            )
            await store.close()
        return
    async with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = HubStore("hf://datasets/owner/name", SourceOptions())
        yield Bed(found, hub.put, hub.delete, tells_progress=True)
        await found.close()


@pytest.fixture
async def hub_bed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    """Set up a dataset on the Hub, which answers in pages of 700 rows, out of order."""
    async with FakeHub(page_count=700) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = HubStore("hf://datasets/owner/name", SourceOptions())
        # a path in git has no empty parts, and none that are dots
        yield Bed(found, hub.put, hub.delete, odd_names=("a\nb", "%41", " lead", "q?x=1#y&z", "tab\tx"))
        await found.close()


@pytest.mark.parametrize(
    "name",
    [
        "test_list_is_in_byte_order_with_whole_refs",
        "test_prefix_is_plain_text",
        "test_prefix_that_matches_nothing_is_empty",
        "test_list_goes_on_after_a_key",
        "test_odd_keys_survive",
        "test_pages_hold_at_most_a_thousand",
        "test_listing_may_be_left_early",
        "test_head_agrees_with_list",
    ],
)
async def test_the_hub_lists_as_buckets_do(hub_bed: Bed, name: str) -> None:
    """Listings of the Hub pass the suite."""
    await getattr(suite, name)(hub_bed)
