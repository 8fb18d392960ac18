"""Arm: obstore's ``get_range``."""

from __future__ import annotations

from typing import Any

import obstore  # peers' environment
from obstore.store import S3Store  # peers' environment

from tests.bench.arms.faults import BUCKET, KEYS, REGION, TIMEOUT_S, report, settings


def main() -> None:
    """Run."""
    options: dict[str, Any] = {"allow_http": True, "timeout": f"{TIMEOUT_S:g}s", "connect_timeout": f"{TIMEOUT_S:g}s"}
    store = S3Store(BUCKET, endpoint=settings()["url"], region=REGION, client_options=options, **KEYS)
    start, end = settings()["start"], settings()["end"]
    report(lambda key: bytes(obstore.get_range(store, key, start=start, end=end)))


if __name__ == "__main__":
    main()
