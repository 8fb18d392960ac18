"""Sizes and durations: what people write is what they get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.units import GIB, KIB, MIB, format_count, format_duration, format_size, parse_duration_s, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("1k", KIB),
        ("1kB", 1000),
        ("1KiB", KIB),
        ("64MiB", 64 * MIB),
        ("64 mib", 64 * MIB),
        (" 1.5GiB ", 3 * GIB // 2),
        ("800GB", 800 * 1000**3),
        ("2T", 2048 * GIB),
        ("2TB", 2 * 1000**4),
        (4096, 4096),
    ],
)
def test_sizes_parse(text: str | int, size_bytes: int) -> None:
    """Decimal units count in thousands, binary ones and single letters in 1024s, case does not matter."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5.5M", "1 quux", "1e3", "0x10", "1M B", "ten", "1é"])
def test_bad_sizes_are_refused(text: str) -> None:
    """Anything else is a ValueError that shows an example."""
    with pytest.raises(ValueError, match="expected a number"):
        parse_size(text)


def test_negative_numbers_are_refused() -> None:
    """A number below zero is neither a size nor a duration."""
    with pytest.raises(ValueError, match="0 or more"):
        parse_size(-1)
    with pytest.raises(ValueError, match="0 or more"):
        parse_duration_s(-0.1)


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [("30s", 30.0), ("1.5m", 90.0), ("2min", 120.0), ("250ms", 0.25), ("10us", 1e-5), ("1h", 3600.0), ("1d", 86400.0)],
)
def test_durations_parse(text: str, duration_s: float) -> None:
    """Each unit has its length; a plain number is seconds."""
    assert parse_duration_s(text) == pytest.approx(duration_s)
    assert parse_duration_s(str(duration_s) if duration_s >= 1e-3 else "0.00001") == pytest.approx(duration_s)
    assert parse_duration_s(duration_s) == duration_s


@given(st.integers(0, 2**50))
def test_bytes_survive_as_plain_numbers(size_bytes: int) -> None:
    """A size written in bytes comes back exactly."""
    assert parse_size(str(size_bytes)) == parse_size(f"{size_bytes}B") == size_bytes


@given(st.integers(0, 2**50))
def test_formatted_sizes_parse_back_to_about_the_same(size_bytes: int) -> None:
    """What is shown can be typed again, and is off by no more than its one decimal."""
    again = parse_size(format_size(size_bytes))
    assert abs(again - size_bytes) <= max(0.06 * size_bytes, 0)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"), (8 * MIB, "8MiB"), (5000 * GIB, "4.9TiB")],
)
def test_sizes_are_shown_short(size_bytes: int, text: str) -> None:
    """One decimal at most, none where it would be a zero."""
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(3.5e-4, "350us"), (0.012, "12ms"), (4.2, "4.2s"), (200.0, "3m20s"), (59.99, "60.0s"), (7500.0, "2h05m")],
)
def test_durations_are_shown_short(duration_s: float, text: str) -> None:
    """The two largest units, no more."""
    assert format_duration(duration_s) == text


def test_one_thing_has_no_plural() -> None:
    """None, one and several."""
    assert [format_count(count, "shard") for count in (0, 1, 2)] == ["0 shards", "1 shard", "2 shards"]
