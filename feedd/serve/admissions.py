"""Limits of what owners may begin: sessions, warm-ups, and calls that say nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from feedd.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.owner import Owner
    from feedd.serve.server_options import ServeOptions

_Key = TypeVar("_Key")
_LONG_ANSWERS_MAX: Final = 256
"""Ranks and DataLoader workers of one owner that read lists of classes at a time."""


class Admissions:
    """Counts what each owner has begun, and refuses more than the options allow."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._opening: Counter[Owner] = Counter()
        self._warming: Counter[Owner] = Counter()
        self._silent: Counter[Owner] = Counter()
        self._reading: Counter[Owner] = Counter()

    @property
    def opening_count(self) -> int:
        """Number of sessions that are being opened."""
        return self._opening.total()

    @contextmanager
    def session(self, owner: Owner, open_count: int, own_count: int) -> Iterator[None]:
        """Hold the right to open a session.

        Args:
            owner: who opens it.
            open_count: open sessions of all owners.
            own_count: those of this owner.

        Raises:
            ResourceExhausted: there are too many sessions, of this owner or of all.
        """
        options = self._options
        if open_count + self.opening_count >= options.sessions_max:
            raise _too_many(f"{options.sessions_max} sessions", "limits.sessions")
        if own_count + self._opening[owner] >= options.sessions_per_owner:
            raise _too_many(f"{options.sessions_per_owner} sessions of {owner}", "limits.sessions_per_owner")
        with _counted(self._opening, owner):
            yield

    @contextmanager
    def warm_up(self, owner: Owner) -> Iterator[None]:
        """Hold the right to one warm-up while it runs.

        Raises:
            ResourceExhausted: too many warm-ups of this owner run.
        """
        if self._warming[owner] >= self._options.warmups_per_owner:
            raise _too_many(f"{self._options.warmups_per_owner} warm-ups of {owner}", "limits.warmups_per_owner")
        with _counted(self._warming, owner):
            yield

    @contextmanager
    def long_answer(self, owner: Owner) -> Iterator[None]:
        """Hold the right to one call whose answer is as long as the caller takes to read it.

        Raises:
            ResourceExhausted: too many such calls of this owner run.
        """
        if self._reading[owner] >= _LONG_ANSWERS_MAX:
            raise _too_many(f"{_LONG_ANSWERS_MAX} calls of {owner} with long answers", "")
        with _counted(self._reading, owner):
            yield

    @contextmanager
    def silent_stream(self, owner: Owner) -> Iterator[None]:
        """Hold the right to one Stream call whose first message has not come.

        Raises:
            ResourceExhausted: too many calls of this owner have not started.
        """
        if self._silent[owner] >= self._options.silent_streams_per_owner:
            raise _too_many(f"{self._options.silent_streams_per_owner} streams without a first message", "")
        with _counted(self._silent, owner):
            yield


@contextmanager
def _counted(counts: Counter[_Key], key: _Key) -> Iterator[None]:
    """Count one more of ``key`` during the body; a count that returns to zero is dropped."""
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


def _too_many(what: str, option: str) -> ResourceExhausted:
    hint = f"close some, or let the operator raise {option}" if option else ""
    return ResourceExhausted(f"there are already {what}, which is the limit", hint=hint, stage="serve")
