"""How ``feedd index`` names many failures."""

from __future__ import annotations

from feedd.cli.index import _reported_once
from feedd.errors import BadShard, Unsupported


def test_one_reason_is_reported_once() -> None:
    """A thousand objects that fail for one reason are one line, with the first object and the number of others."""
    hint = 'read them with "tokens:uint16:2049"'
    failures = [Unsupported(f"expected a shard, got {n}.bin", object=f"s3://b/{n}.bin", hint=hint) for n in range(1000)]
    assert _reported_once(failures) == [f"expected a shard, got 0.bin [s3://b/0.bin] - {hint} (and 999 more objects)"]


def test_many_reasons_are_bounded() -> None:
    """Eight reasons are named, the rest is counted, and a single failure is told as it is."""
    lines = _reported_once([BadShard(f"reason {n}", object=f"{n}.tar") for n in range(11)])
    assert lines[0] == "reason 0 [0.tar]"
    assert len(lines) == 9
    assert lines[-1] == "3 more objects failed for other reasons"
    assert _reported_once([]) == []
