"""How many requests may be retried: a share of the successful ones, so that retries cannot overload a weak store. Pure.

A store in trouble answers every retry with another error. Clients that each try eight times then send it up to eight
times its load; with a quota they send a tenth more. If every request fails, single probes find out when the store is
back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Bounds of a quota.

    Attributes:
        share: retries earned by each successful request.
        initial: retries at the start.
        balance_max: retries that can be saved up.
        probe_s: time between unpaid retries, doubled after each until a request succeeds.
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
    """The retries of one bucket. Call ``ask`` before each retry, ``succeeded`` after each successful request."""

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
        """Earn a share of a retry, and reset the probe interval."""
        self._balance = min(self._policy.balance_max, self._balance + self._policy.share)
        self._probe_every_s = self._policy.probe_s

    def ask(self, now_s: float) -> float:
        """Take one retry. Returns 0.0 if it may be sent now, else the seconds after which to ask again."""
        if self._balance >= 1:
            self._balance -= 1
            return 0.0
        if now_s < self._probe_at_s:
            # The sum above was rounded, possibly upwards.
            return min(self._probe_at_s - now_s, self._policy.probe_max_s)
        self._probe_at_s = now_s + self._probe_every_s
        self._probe_every_s = min(2 * self._probe_every_s, self._policy.probe_max_s)
        return 0.0
