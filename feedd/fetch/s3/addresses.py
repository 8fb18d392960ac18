"""Which address of an endpoint to connect to next. Pure: the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

QUARANTINE_FIRST_S = 1.0
QUARANTINE_MAX_S = 60.0
_SLOW_FACTOR = 4.0  # an answer this many times slower than usual is slow
_STRIKES_MAX = 3  # slow answers in a row: a few late answers of a good address are no reason to leave it
_WEIGHT = 0.1  # weight of one answer in the usual time


@dataclass(slots=True)
class _Health:
    """Health of one address.

    Attributes:
        strikes: slow answers in a row.
        quarantine_s: length of its latest quarantine; 0: not in quarantine.
        probe_at_s: when the next probe is due.
        probing: a probe is running.
    """

    strikes: int = 0
    quarantine_s: float = 0.0
    probe_at_s: float = 0.0
    probing: bool = False


class Addresses:
    """The addresses of one host name.

    Connections are spread over them. An address that is dead, or slow several times in a row, is not used for a second,
    then probed by one request. If the probe fails, the pause doubles, up to a minute, until the address is as fast as
    the others.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Health] = {}
        self._next = 0
        self._usual_s = 0.0  # usual time per MiB

    def __repr__(self) -> str:
        bad = sum(map(self._quarantined, self._known))
        return f"Addresses({len(self._known)} known, {bad} in quarantine)"

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, found: Iterable[str]) -> None:
        """Replace the addresses by a new resolution; addresses not in it are forgotten."""
        self._known = {address: self._known.get(address) or _Health() for address in found}

    def order(self, load: Mapping[str, int], avoid: Collection[str] = ()) -> list[str]:
        """Return all addresses, best first.

        Addresses in quarantine come last, before them those to ``avoid``, then those with more ``load``. Among equals,
        each call starts one address further.
        """
        known = list(self._known)
        at = self._next % max(1, len(known))
        self._next += 1
        in_turn = known[at:] + known[:at]
        return sorted(in_turn, key=lambda one: (self._quarantined(one), one in avoid, load.get(one, 0)))

    def due(self, now_s: float) -> str | None:
        """Return an address to probe because its quarantine is over, or None. No other caller gets it meanwhile."""
        for address, health in self._known.items():
            if health.quarantine_s and health.probe_at_s <= now_s:
                health.probe_at_s, health.probing = now_s + health.quarantine_s, True
                return address
        return None

    def shunned(self, address: str, avoid: Collection[str] = ()) -> bool:
        """Return whether connections to an address must not be used because there are better addresses."""
        if not self._quarantined(address) and address not in avoid:
            return False
        return any(one not in avoid and not self._quarantined(one) for one in self._known)

    def failed(self, address: str, now_s: float) -> None:
        """Record that an address did not answer: refused, timed out, or fell silent."""
        health = self._known.get(address)
        if health is None or (health.quarantine_s and not health.probing):
            return  # of many requests that fail together, only the first says something new
        health.quarantine_s = min(QUARANTINE_MAX_S, 2 * health.quarantine_s or QUARANTINE_FIRST_S)
        health.probe_at_s, health.probing, health.strikes = now_s + health.quarantine_s, False, 0

    def timed(self, address: str, size_bytes: int, duration_s: float, now_s: float, *, whole: bool = True) -> None:
        """Record how long an answer took; a request given up early (not ``whole``) counts only if it was slow."""
        pace_s = duration_s * MIB / max(size_bytes, MIB)
        usual_s = self._usual_s or pace_s
        slow = pace_s > _SLOW_FACTOR * usual_s
        if not slow and not whole:
            return
        self._usual_s = usual_s + _WEIGHT * (min(pace_s, _SLOW_FACTOR * usual_s) - usual_s)
        health = self._known.get(address)
        if health is None:
            return
        if not slow:
            health.strikes, health.quarantine_s, health.probing = 0, 0.0, False
            return
        health.strikes += 1
        if health.probing or health.strikes >= _STRIKES_MAX:
            self.failed(address, now_s)

    def _quarantined(self, address: str) -> bool:
        health = self._known.get(address)
        return health is not None and health.quarantine_s > 0
