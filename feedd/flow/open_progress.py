"""What an Open waits for right now, for the user who waits with it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedd.errors import FeeddError

TEXT_MAX = 512
_current: ContextVar[OpenProgress | None] = ContextVar("open_progress", default=None)


@dataclass(slots=True)
class OpenProgress:
    """The stage of one Open, and the trouble its requests to the store have met.

    Attributes:
        stage: what is being done, as a participle: "listing s3://bucket/train/".
        retry_count: requests sent again since the Open began.
        last_error: why the last one was sent again; empty: none was.
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
    """Return the progress of the Open that the current task, and every task it starts, works for."""
    progress = OpenProgress()
    _current.set(progress)
    return progress


def enter_stage(stage: str) -> None:
    """Note what the current Open does from now on; outside of an Open this does nothing."""
    progress = _current.get()
    if progress is not None:
        progress.stage = stage


def note_retry(error: FeeddError) -> None:
    """Note that a request of the current Open is sent again because of ``error``; outside of one: nothing."""
    progress = _current.get()
    if progress is not None:
        progress.retry_count += 1
        progress.last_error = error.message
