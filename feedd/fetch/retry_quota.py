"""How many requests may be sent again: a share of those that went well, so that a brown-out stays one. Pure.

A store in trouble answers every retry with another error. Clients that each try eight times then send it nine times
its load; with a quota they send it a tenth more. Where nothing goes well at all, single probes find out when it does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Bounds of a quota.

    Attributes:
        share: retries earned by each request that went well.
        initial: retries to begin with.
        balance_max: retries that can be saved up.
        probe_s: time between retries that are not paid for, doubled after each until something goes well.
        probe_max_s: upper bound of that time.
    """

    share: float = 0.1
    initial: float = 16.0
    balance_max: float = 64.0
    probe_s: float = 0.25
    probe_max_s: float = 4.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.initial < 0 or self.balance_max < self.initial:
            raise ValueError(f"expected a share from 0 to 1 and 0 <= initial <= balance_max, got {self}")
        if not 0 < self.probe_s <= self.probe_max_s:
            raise ValueError(f"expected 0 < probe_s <= probe_max_s, got {self}")


class RetryQuota:
    """The retries of one bucket. ``ask`` before each; ``succeeded`` after each request that went well."""

    def __init__(self, policy: QuotaPolicy | None = None) -> None:
        self._policy = policy or QuotaPolicy()
        self._balance = self._policy.initial
        self._probe_every_s = self._policy.probe_s
        self._probe_at_s = float("-inf")

    def __repr__(self) -> str:
        return f"RetryQuota({self._balance:.1f} left)"

    @property
    def balance(self) -> float:
        """Retries that are paid for."""
        return self._balance

    def succeeded(self) -> None:
        """Earn a share of a retry, and the trust that others go well too."""
        self._balance = min(self._policy.balance_max, self._balance + self._policy.share)
        self._probe_every_s = self._policy.probe_s

    def ask(self, now_s: float) -> float:
        """Take one retry: 0.0 where it may be sent now, else the seconds after which to ask again."""
        if self._balance >= 1:
            self._balance -= 1
            return 0.0
        if now_s < self._probe_at_s:
            return min(self._probe_at_s - now_s, self._policy.probe_max_s)  # the sum before was rounded, upwards too
        self._probe_at_s = now_s + self._probe_every_s
        self._probe_every_s = min(2 * self._probe_every_s, self._policy.probe_max_s)
        return 0.0
