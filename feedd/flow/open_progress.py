"""The current stage of an Open, for the user who waits for it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.errors import FeeddError

TEXT_MAX = 512
_current: ContextVar[OpenProgress | None] = ContextVar("open_progress", default=None)


@dataclass(slots=True)
class OpenProgress:
    """The stage of one Open, and the retries of its requests to the store.

    Attributes:
        stage: current step, as a participle: "listing s3://bucket/train/".
        retry_count: requests sent again since the Open began.
        last_error: error behind the last retry; empty: none.
    """

    stage: str = "reading the request"
    retry_count: int = 0
    last_error: str = ""

    def __str__(self) -> str:
        """Return one line of at most ``TEXT_MAX`` characters."""
        retries = f"{self.retry_count} retr{'y' if self.retry_count == 1 else 'ies'}"
        trouble = f" ({retries}, the last because: {self.last_error})" if self.retry_count else ""
        text = self.stage + trouble
        return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def begin_open() -> OpenProgress:
    """Start and return the progress of an Open, for the current task and all tasks it starts."""
    progress = OpenProgress()
    _current.set(progress)
    return progress


def enter_stage(stage: str) -> None:
    """Set the stage of the current Open; does nothing outside of an Open."""
    progress = _current.get()
    if progress is not None:
        progress.stage = stage


@contextmanager
def stage_within(step: str) -> Iterator[None]:
    """Add a step to the stage of the current Open while the block runs; does nothing outside of an Open."""
    progress = _current.get()
    if progress is None:
        yield
        return
    before = progress.stage
    during = progress.stage = f"{step} for {before}"
    try:
        yield
    finally:
        if progress.stage == during:  # other parts of the Open may have gone on
            progress.stage = before


def note_retry(error: FeeddError) -> None:
    """Record a retry in the current Open; does nothing outside of an Open."""
    progress = _current.get()
    if progress is not None:
        progress.retry_count += 1
        progress.last_error = error.message
