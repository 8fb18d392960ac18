"""A script that refuses a share of all requests, drawn by a seed."""

from __future__ import annotations

import random

from tests.fakes.s3.faults import Fault, Script, SharedRate, slow_down


class Refusing(Script):
    """A script that also refuses a share of all GETs with 503 SlowDown, drawn by a seed."""

    def __init__(self, share: float, seed: int, rate: SharedRate | None = None) -> None:
        super().__init__(rate)
        self._share = share
        self._draws = random.Random(seed)

    def take(self, op: str, bucket: str, key: str) -> Fault:
        """Return what this request meets."""
        if op == "GET" and self._draws.random() < self._share:
            return slow_down()
        return super().take(op, bucket, key)
