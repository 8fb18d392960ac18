"""Shows the progress of ``feedd cache warm``: bars on a terminal, a line per tenth elsewhere, and errors at once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn

from feedd.cli.progress_bars import bars, byte_columns
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from feedd.errors import FeeddError
    from feedd.warming import Amount, WarmProgress

_STEPS = 10


class Display:
    """Keeps progress and errors; this base class shows neither.

    Attributes:
        progress: the latest progress; None before the listing is complete.
        failures: one error per object that could not be fetched.
    """

    def __init__(self) -> None:
        self.progress: WarmProgress | None = None
        self.failures: list[FeeddError] = []

    def report(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        """Keep the progress and the failure, and show them."""
        self.progress = progress
        if failure is not None:
            self.failures.append(failure)

    def facts(self) -> dict[str, object]:
        """Return progress and errors in a JSON-able form."""
        if self.progress is None:
            return {}
        facts: dict[str, object] = {
            name: {"objects": amount.object_count, "bytes": amount.size_bytes}
            for name, amount in (
                ("total", self.progress.total),
                ("present", self.progress.present),
                ("warmed", self.progress.warmed),
                ("left_out", self.progress.left_out),
                ("failed", self.progress.failed),
            )
        }
        errors = [{"object": one.object, "kind": one.kind, "message": one.message} for one in self.failures]
        return facts | {"errors": errors}


class _Lines(Display):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._step = -1

    def report(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        super().report(progress, failure)
        if failure is not None:
            self._console.print(_error_line(failure))
        done, total = _done(progress), progress.total
        step = _STEPS * done[0] // total.object_count if total.object_count else _STEPS
        if step > self._step:
            self._step = step
            self._console.print(
                f"feedd: {done[0]} of {total.object_count} objects, "
                f"{format_size(done[1])} of {format_size(total.size_bytes)}"
            )


class _Bars(Display):
    def __init__(self, shown: Progress) -> None:
        super().__init__()
        self._bars = shown
        self._task = shown.add_task("listing", total=None, objects="")

    def report(self, progress: WarmProgress, failure: FeeddError | None) -> None:
        first = self.progress is None
        super().report(progress, failure)
        if failure is not None:
            self._bars.console.print(escape(_error_line(failure)))
        count, size_bytes = _done(progress)
        if first:  # objects already in the cache took no time, so the rate must not count them
            self._bars.reset(self._task, total=progress.total.size_bytes, completed=size_bytes, description="warming")
        self._bars.update(self._task, completed=size_bytes, objects=f"{count}/{progress.total.object_count} objects")


@contextmanager
def display(stream: IO[str], *, quiet: bool) -> Iterator[Display]:
    """Yield a display that shows progress on ``stream``; ``quiet``: a display that shows nothing."""
    console = Console(file=stream)
    if quiet:
        yield Display()
    elif console.is_terminal:
        with bars(console, *byte_columns(TextColumn("{task.fields[objects]}"))) as shown:
            yield _Bars(shown)
    else:
        yield _Lines(Console(file=stream, soft_wrap=True, markup=False, highlight=False))


def _error_line(error: FeeddError) -> str:
    about = f" [{error.object}]" if error.object else ""
    return f"feedd: error: {error.message}{about}"


def _done(progress: WarmProgress) -> tuple[int, int]:
    """Return the objects and bytes that are settled: present, fetched, left out or failed."""
    settled: tuple[Amount, ...] = (progress.present, progress.warmed, progress.left_out, progress.failed)
    return sum(amount.object_count for amount in settled), sum(amount.size_bytes for amount in settled)
