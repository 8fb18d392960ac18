"""The size of parts: within its bounds whatever is seen, steady, and where the rule says by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.fetch.limits import PartSize
from feedd.units import MIB
from tests.budget import budget

SEEN = st.lists(st.tuples(st.integers(1, 64 * MIB), st.floats(0, 2), st.floats(0, 30)), max_size=120)


def _seen(sizes: PartSize, rate: float, wait_s: float, count: int = 64) -> PartSize:
    for _ in range(count):
        part = sizes.aim_bytes
        sizes.note(part, wait_s, wait_s + part / rate)
    return sizes


@settings(max_examples=budget(150), deadline=None)
@given(seen=SEEN, parts=st.integers(1, 64), budget_bytes=st.integers(64 * 1024, 1 << 30), size=st.integers(1, 1 << 43))
def test_bounds(seen: list[tuple[int, float, float]], parts: int, budget_bytes: int, size: int) -> None:
    """Whole MiB, at most 16; up to 16 of them in flight are never more than the budget has; parts alike."""
    sizes = PartSize(0, parts, budget_bytes)
    for part, wait_s, body_s in seen:
        sizes.note(part, wait_s, wait_s + body_s)
        assert sizes.aim_bytes <= 16 * MIB
        if budget_bytes >= parts * MIB:
            assert sizes.aim_bytes % MIB == 0
            assert sizes.aim_bytes * min(parts, 16) <= budget_bytes
    part = sizes.of(size)
    count = -(-size // part)
    assert part % MIB == 0 or part == sizes.aim_bytes == budget_bytes < MIB
    if size >= 4 * sizes.aim_bytes >= 4 * MIB:
        assert 0.7 * sizes.aim_bytes <= part <= 1.5 * sizes.aim_bytes + MIB
    assert size > (count - 1) * part


@settings(max_examples=budget(60), deadline=None)
@given(rate=st.floats(1e5, 1e9), wait_s=st.floats(1e-4, 0.5))
def test_faster_and_farther_stores_have_no_smaller_parts(rate: float, wait_s: float) -> None:
    """With twice the rate, or twice the wait for the first byte, parts are no smaller, but for a steady step."""
    here = _seen(PartSize(0, 16, 1 << 30), rate, wait_s).aim_bytes
    assert _seen(PartSize(0, 16, 1 << 30), 2 * rate, wait_s).aim_bytes * 1.5 >= here
    assert _seen(PartSize(0, 16, 1 << 30), rate, 2 * wait_s).aim_bytes * 1.5 >= here


@settings(max_examples=budget(60), deadline=None)
@given(
    rate=st.floats(1e7, 1e10), wait_s=st.floats(1e-4, 0.1), budget_mib=st.integers(16, 8192), more=st.integers(2, 64)
)
def test_more_parts_are_no_smaller_than_eight_mib(rate: float, wait_s: float, budget_mib: int, more: int) -> None:
    """Of one bandwidth and one budget, 16 times as many parts are as large as before, or of 8 MiB at least."""
    few = _seen(PartSize(0, 16, budget_mib * MIB), rate / 16, wait_s).aim_bytes
    many = PartSize(0, 16 * more, budget_mib * MIB)
    assert many.aim_bytes >= min(8 * MIB, few)
    busy = min(16 * more, budget_mib * MIB // many.aim_bytes)
    assert _seen(many, rate / busy, wait_s).aim_bytes * 1.5 >= min(8 * MIB, few, int(rate * 0.012) // MIB * MIB)


def test_by_hand() -> None:
    """90 MB/s a connection at 30 ms and a fast near store: 16 MiB; 5 MB/s at 20 ms: 2 MiB; a budget of 64 MiB: 4."""
    assert _seen(PartSize(0, 16, 1 << 30), 90e6, 0.03).aim_bytes == 16 * MIB
    assert _seen(PartSize(0, 16, 1 << 30), 100e6, 0.001).aim_bytes == 16 * MIB
    assert _seen(PartSize(0, 16, 1 << 30), 5e6, 0.02).aim_bytes == 2 * MIB
    assert _seen(PartSize(0, 16, 64 * MIB), 90e6, 0.03).aim_bytes == 4 * MIB
    assert PartSize(0, 16, 1 << 30).aim_bytes == 8 * MIB
    assert [PartSize(0, parts, 256 * MIB).aim_bytes for parts in (16, 64, 256, 512)] == [8 * MIB] * 4
    assert PartSize(0, 512, 64 * MIB).aim_bytes == 4 * MIB


def test_steady() -> None:
    """Rates that stray by a third do not change it."""
    sizes = _seen(PartSize(0, 16, 1 << 30), 10e6, 0.02)
    before = sizes.aim_bytes
    for rate in (13e6, 8e6, 12e6, 7.5e6):
        assert _seen(sizes, rate, 0.02).aim_bytes == before


def test_fixed_stays_fixed() -> None:
    """What an operator sets is what is done."""
    sizes = _seen(PartSize(65536, 16, 1 << 30), 1e9, 0.3)
    assert (sizes.aim_bytes, sizes.of(1 << 40)) == (65536, 65536)


def test_small_objects_come_whole() -> None:
    """An object below one and a half parts is one request; one of two parts is two alike."""
    sizes = PartSize(0, 16, 1 << 30)
    assert sizes.of(11 * MIB) >= 11 * MIB
    assert sizes.of(18 * MIB) == 9 * MIB
