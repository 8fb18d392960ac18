"""Faults at random that repeat: which request meets one is decided by a seed, the range asked for and the attempt."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass

from tests.fakes.s3.faults import NO_FAULT, Fault

_SCALE = 2.0**64


@dataclass(frozen=True, slots=True)
class Odds:
    """How often what goes wrong.

    Attributes:
        latency_s: before the first byte of every answer to a GET of an object.
        delayed_share: of those requests, from 0 to 1, so many wait longer.
        delay_factor: that many times ``latency_s``.
        error_share: so many are answered 503 SlowDown at once.
        rate_bytes_s: no connection is sent more than that; 0: no limit.
        seed: another one draws others.
    """

    latency_s: float = 0.0
    delayed_share: float = 0.0
    delay_factor: float = 50.0
    error_share: float = 0.0
    rate_bytes_s: int = 0
    seed: int = 0


class Draws:
    """Draws a fault for each request. Thread-safe.

    The same ranges asked for in another order meet the same faults; one asked for again is drawn anew.
    """

    def __init__(self, odds: Odds) -> None:
        self._odds = odds
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Count attempts from one again, so that the next round meets what this one met."""
        with self._lock:
            self._attempts.clear()

    def draw(self, key: str, span: str) -> Fault:
        """Return what this GET meets."""
        odds = self._odds
        if not (odds.delayed_share or odds.error_share):
            return Fault(delay_s=odds.latency_s) if odds.latency_s else NO_FAULT
        asked = f"{key} {span}"
        with self._lock:
            self._attempts[asked] += 1
            attempt = self._attempts[asked]
        if self._chance("error", asked, attempt) < odds.error_share:
            return Fault(status=503, code="SlowDown")
        late = self._chance("delay", asked, attempt) < odds.delayed_share
        return Fault(delay_s=odds.latency_s * (odds.delay_factor if late else 1.0))

    def _chance(self, kind: str, asked: str, attempt: int) -> float:
        text = f"{self._odds.seed} {kind} {attempt} {asked}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / _SCALE
