"""What the arms of the fault table share: settings, and how one read is judged."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
TIMEOUT_S = 3.0  # of a silent server, for every client that has such a setting
PART_BYTES = 4 * MIB
BUCKET = "bench"
REGION = "us-east-1"
KEYS: dict[str, Any] = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}


@functools.cache
def settings() -> dict[str, Any]:
    """Return the arm's own settings."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def http_range() -> str:
    """Return the header's value for the range that is to be read."""
    return f"bytes={settings()['start']}-{settings()['end'] - 1}"


def report(read: Callable[[str], bytes]) -> None:
    """Read each object once; print what became of it."""
    print(json.dumps({key: _attempt(read, key, good) for key, good in settings()["good"].items()}))


def _attempt(read: Callable[[str], bytes], key: str, good: list[str]) -> dict[str, Any]:
    started_s = time.perf_counter()
    try:
        data = read(key)
    except Exception as raised:  # noqa: BLE001 - whatever a client raises is what is asked for
        kind = type(raised)
        found: dict[str, Any] = {
            "outcome": "error",
            "error": f"{kind.__module__}.{kind.__name__}",
            "text": str(raised)[:500],
        }
    else:
        exact = hashlib.sha256(data).hexdigest() in good
        found = {"outcome": "exact" if exact else "wrong", "size_bytes": len(data)}
    return found | {"seconds": time.perf_counter() - started_s}
