"""A shared link: equal rates, no connection above its own, exact ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from feedd.simulation.link import SharedLink
from feedd.simulation.virtual_loop import run_in_virtual_time


def _ends(link: SharedLink, transfers: list[tuple[float, int]]) -> list[float]:
    """Begin transfers at given times; return when each ended."""

    async def one(begin_s: float, size_bytes: int) -> float:
        await asyncio.sleep(begin_s)
        await link.transfer(size_bytes)
        return asyncio.get_running_loop().time()

    async def run() -> list[float]:
        return list(await asyncio.gather(*(one(*transfer) for transfer in transfers)))

    return run_in_virtual_time(run())


def test_a_transfer_alone_has_the_rate_of_a_connection() -> None:
    """100 bytes at 10 bytes a second take 10 s, however fast the link is."""
    assert _ends(SharedLink(1000.0, 10.0), [(0.0, 100)]) == pytest.approx([10.0])


def test_transfers_share_a_link_equally() -> None:
    """Two transfers get half of the link each; when the shorter one ends, the other gets all of it."""
    assert _ends(SharedLink(10.0, 10.0), [(0.0, 50), (0.0, 100)]) == pytest.approx([10.0, 15.0])


def test_a_late_transfer_slows_the_others_down_from_then_on() -> None:
    """Alone for 5 s at 10 bytes a second, then beside another at 5."""
    assert _ends(SharedLink(10.0, 10.0), [(0.0, 100), (5.0, 25)]) == pytest.approx([12.5, 10.0])


def test_a_cancelled_transfer_leaves_its_share_to_the_others() -> None:
    """After the cancellation at 2 s the other has the link alone."""
    link = SharedLink(10.0, 10.0)

    async def run() -> float:
        gone = asyncio.ensure_future(link.transfer(1000))
        asyncio.get_running_loop().call_later(2.0, gone.cancel)
        await link.transfer(50)
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == pytest.approx(6.0)
    assert link.moved_bytes == 50


def test_an_empty_transfer_takes_no_time() -> None:
    """Zero bytes have passed at once."""
    assert _ends(SharedLink(10.0, 10.0), [(1.0, 0)]) == pytest.approx([1.0])


@pytest.mark.parametrize(("link", "connection"), [(0.0, 1.0), (1.0, 0.0)])
def test_rates_are_above_zero(link: float, connection: float) -> None:
    """A rate of 0 would never end."""
    with pytest.raises(ValueError, match="rates above 0"):
        SharedLink(link, connection)
