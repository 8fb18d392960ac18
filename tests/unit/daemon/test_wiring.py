"""What the configuration means to the parts of the daemon."""

from __future__ import annotations

import pytest

from feedd.access import AccessRules
from feedd.cache.prefetch import PrefetchLimits
from feedd.cli.flags import Flags
from feedd.config import load
from feedd.daemon.wiring import cache_options, decode_options, source_options


@pytest.mark.parametrize(
    ("workers", "autotune", "first", "most"),
    [("auto", True, 3, 8), ("auto", False, 8, 0), ("5", True, 5, 0), ("5", False, 5, 0)],
)
def test_no_autotune_pins(workers: str, first: int, most: int, *, autotune: bool) -> None:
    """Without it workers are at their maximum or their fixed number, and so are requests."""
    flags = Flags(workers=workers, autotune=autotune, set=["decode.workers_max=8", "fetch.parts_in_flight=40"])
    config = load(flags._given(), {}).config
    decode, source = decode_options(config), source_options(config, AccessRules())
    assert (decode.workers, decode.workers_max) == (first, most)
    assert (source.parts_in_flight, source.pinned) == (40, not autotune)


def test_the_other_lanes_are_pinned_too() -> None:
    """The flag reaches the processes that a supervisor starts."""
    assert "--no-autotune" in Flags(autotune=False).arguments()
    assert "--autotune" in Flags(autotune=True).arguments()
    assert not Flags().arguments()


def test_as_many_shards_are_fetched_in_advance_as_there_are_requests() -> None:
    """Within the bytes that may be requested."""
    flags = Flags(set=["fetch.parts_in_flight=40", "fetch.bytes_in_flight=300MiB"])
    assert cache_options(load(flags._given(), {}).config).prefetching == PrefetchLimits(40, 300 << 20)
