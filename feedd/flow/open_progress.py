"""The current stage of an Open, for the user who waits for it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedd.errors import FeeddError

TEXT_MAX = 512
STORE = "endpoint, region, proxy and network of the store"
_current: ContextVar[OpenProgress | None] = ContextVar("open_progress", default=None)


@dataclass(slots=True)
class OpenProgress:
    """The stage of one Open, and the retries of its requests to the store.

    Attributes:
        stage: current step, as a participle: "listing s3://bucket/train/".
        suspect: what to check if the step never ends.
        retry_count: requests sent again since the Open began.
        last_error: error behind the last retry; empty: none.
    """

    stage: str = "reading the request"
    suspect: str = STORE
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
        progress.stage, progress.suspect = stage, STORE


@contextmanager
def stage_within(suspect: str) -> Iterator[Callable[[str], None]]:
    """Let a part of the current stage name its steps; the stage comes back when the block ends.

    Args:
        suspect: what to check if a step never ends.

    Yields:
        Sets the step, as a participle: "getting credentials". It does nothing outside of an Open.
    """
    progress = _current.get()
    if progress is None:
        yield lambda _: None
        return
    before, steps = progress.stage, {progress.stage}

    def enter(step: str) -> None:
        if progress.stage in steps:  # other parts of the Open may have gone on
            progress.stage, progress.suspect = f"{step} for {before}", suspect
            steps.add(progress.stage)

    try:
        yield enter
    finally:
        if progress.stage in steps:
            progress.stage, progress.suspect = before, STORE


def note_retry(error: FeeddError) -> None:
    """Record a retry in the current Open; does nothing outside of an Open."""
    progress = _current.get()
    if progress is not None:
        progress.retry_count += 1
        progress.last_error = error.message
