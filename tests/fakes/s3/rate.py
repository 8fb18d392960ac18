"""A rate that all connections of the scripted S3 server share."""

from __future__ import annotations

import asyncio
import random
import time

from tests.fakes.s3.faults import Fault, Script, slow_down


class SharedRate:
    """Lets bytes pass at a rate, in the order in which they come."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until so many bytes may pass."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s - 0.02) + count / self._bytes_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


class Refusing(Script):
    """A script that also refuses a share of all GETs with 503 SlowDown, drawn by a seed."""

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self._share = share
        self._draws = random.Random(seed)

    def take(self, op: str, bucket: str, key: str) -> Fault:
        """Return what this request meets."""
        if op == "GET" and self._draws.random() < self._share:
            return slow_down()
        return super().take(op, bucket, key)
