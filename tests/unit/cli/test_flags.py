"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedd.cli.flags import Flags, fields_of, size_of
from feedd.errors import BadConfig

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1KiB", "expected 1MiB to 1GiB, got 1KiB"),
        ("2GiB", "expected 1MiB to 1GiB, got 2GiB"),
        ("much", "expected a number"),
    ],
)
def test_a_size_lies_between_its_bounds(text: str, message: str) -> None:
    """The error says which sizes are expected; the bounds themselves are sizes."""
    with pytest.raises(BadConfig, match=message):
        size_of(text, "--shard-size", MIB, 1024 * MIB)
    assert [size_of(one, "--shard-size", MIB, 1024 * MIB) for one in ("1MiB", "1GiB")] == [MIB, 1024 * MIB]
    with pytest.raises(BadConfig, match="expected at least 1MiB, got 3"):
        size_of("3", "--buffer", MIB)


def test_fields_are_a_json_object() -> None:
    """Nothing is an empty recipe; any other JSON, and text that is none, is refused."""
    assert fields_of("") == {}
    assert fields_of('{"cls": "int"}') == {"cls": "int"}
    for text in ("[1]", "jpg=image"):
        with pytest.raises(BadConfig, match="expected a JSON object"):
            fields_of(text)


def test_another_process_gets_the_same_flags() -> None:
    """What a user has typed is passed on with absolute paths; what was not typed is not."""
    flags = Flags(
        config=Path("feedd.toml"),
        listen=["unix:///a.sock", "host:1"],
        cache_dir=Path("cache"),
        workers="3",
        log_level="debug",
        set=["lanes=2"],
        autotune=False,
    )
    given = flags.arguments()
    assert given[0] == "--no-autotune"
    pairs = set(zip(given[1::2], given[2::2], strict=True))
    assert pairs == {
        ("--config", str(Path("feedd.toml").absolute())),
        ("--cache-dir", str(Path("cache").absolute())),
        ("--workers", "3"),
        ("--log-level", "debug"),
        ("--listen", "unix:///a.sock"),
        ("--listen", "host:1"),
        ("--set", "lanes=2"),
    }
    assert Flags().arguments() == []
