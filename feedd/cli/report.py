"""How commands print: tables, JSON, progress, notices and errors."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from feedd.config import ConfigProblems
from feedd.errors import BadRequest, FeeddError
from feedd.notices import OBJECTS_EVENT, SIDECARS_EVENT
from feedd.observe.logs import configure_logging, redact_text
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import JustifyMethod
    from rich.progress import Progress, ProgressColumn, TaskID

    from feedd.notices import Notice

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_STEPS: Final = 10
_LINES_S: Final = 10.0


def clean(text: str) -> str:
    """Return text without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def print_line(text: str) -> None:
    """Print a line, in which text from elsewhere is shown and not obeyed."""
    typer.echo(clean(text))


def print_json(facts: object) -> None:
    """Print what a command found, for programs."""
    typer.echo(json.dumps(facts, indent=2))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text] | None], *, caption: str = ""
) -> None:
    """Print a table, in which text from elsewhere is shown and not obeyed: it has no markup and no control characters.

    Args:
        title: the line above; empty: none.
        columns: the headings. After ``>`` cells are right-justified, after ``|`` they are not folded either.
            A table without headings has none but these marks.
        rows: the cells; None: a line between two parts.
        caption: the line below; empty: none.
    """
    table = Table(title=escape(title) or None, caption=escape(caption) or None, title_justify="left")
    table.caption_justify = "left"
    table.show_header = any(name.strip(">|") for name in columns)
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">|"), justify=justify, no_wrap=name[:1] in {">", "|"}, overflow="fold")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(
                *(cell if isinstance(cell, Text) else Text("\n".join(map(clean, cell.split("\n")))) for cell in row)
            )
    Console().print(table)


def say(text: str) -> None:
    """Write one line to standard error, without secrets."""
    sys.stderr.write(f"feedd: {redact_text(text, len(text))}\n")


def log_without_notices() -> None:
    """Configure the log without the events that ``say_notices`` prints."""
    configure_logging("text", "warning", without=(OBJECTS_EVENT, SIDECARS_EVENT))


def say_notices(notices: Iterable[Notice]) -> None:
    """Write a line to standard error for each kind of data that is left out or changed."""
    for notice in notices:
        say(f"warning: {notice.text}" if notice.warns else notice.text)


def notice_facts(notices: Iterable[Notice]) -> dict[str, dict[str, Any]]:
    """Return notices by kind for ``--json``, in the form of the client's ``stats()["notices"]``."""
    return {
        notice.kind.value: {
            "text": notice.text,
            "count": notice.amount.count,
            "bytes": notice.amount.size_bytes,
            "warns": notice.warns,
        }
        for notice in notices
    }


def error_facts(errors: Iterable[FeeddError]) -> list[dict[str, str]]:
    """Return the errors of single objects for ``--json``."""
    return [{"object": one.object, "kind": one.kind, "message": one.message} for one in errors]


def say_error(error: FeeddError) -> int:
    """Print the error and return the exit code: 2 if the user can correct the command or configuration, else 1.

    With ``FEEDD_DEBUG=1`` the error is raised again, so that its traceback is shown.
    """
    if os.environ.get("FEEDD_DEBUG") == "1":
        raise error
    if isinstance(error, ConfigProblems):
        count = len(error.problems)
        say(f"error: {count} problem{'s' if count > 1 else ''} in the configuration")
        for problem in error.problems:
            say(f"  {problem}")
    else:
        say(error_line(error))
        if error.hint:
            say(f"hint: {error.hint}")
    return EXIT_USAGE if isinstance(error, BadRequest) else EXIT_FAILED


def error_line(error: FeeddError) -> str:
    """Return an error with its object, without its hint."""
    return f"error: {error.message}{f' [{error.object}]' if error.object else ''}"


@contextmanager
def bars(*columns: ProgressColumn, quiet: bool, transient: bool = False) -> Iterator[Progress | None]:
    """Yield bars on standard error; None if it is no terminal, or if ``quiet``.

    Args:
        columns: what stands between a bar and the time that is left.
        quiet: draw nothing.
        transient: the bars vanish at the end.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - for long work only

    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield None
        return
    begin = TextColumn("{task.description}"), BarColumn()
    with Progress(*begin, *columns, TimeRemainingColumn(), console=console, transient=transient) as shown:
        yield shown


@contextmanager
def bar(*columns: ProgressColumn, quiet: bool) -> Iterator[Callable[..., object]]:
    """Yield what updates a bar, which says "listing" until then; it takes ``description``, ``total``, ``completed``."""
    with bars(*columns, quiet=quiet, transient=True) as shown:
        if shown is None:
            yield lambda **_: None
        else:
            yield partial(shown.update, shown.add_task("listing", total=None))


def byte_columns(*between: ProgressColumn) -> tuple[ProgressColumn, ...]:
    """Return columns with the bytes so far, then ``between``, then the rate."""
    from rich.progress import DownloadColumn, TransferSpeedColumn  # noqa: PLC0415 - see bars

    return DownloadColumn(binary_units=True), *between, TransferSpeedColumn()


class Meter:
    """Shows how far each of several things is: a bar on a terminal; elsewhere a line for each tenth, or every 10 s."""

    def __init__(self, shown: Progress | None, *, unit: str, quiet: bool) -> None:
        """Show nothing yet.

        Args:
            shown: the bars; None: lines are written.
            unit: what is counted, in the plural.
            quiet: show nothing at all.
        """
        self._bars = shown
        self._unit = unit
        self._quiet = quiet
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[int, int, float]] = {}
        self._listing = None if shown is None else shown.add_task("listing", total=None, count="")

    def show(self, name: str, done: tuple[int, int], total: tuple[int, int]) -> None:
        """Show how far a thing is.

        Args:
            name: the thing; empty: there is only one.
            done: how many are done, and their bytes.
            total: how many there are, and their bytes.
        """
        if self._bars is not None:
            if self._listing is not None:
                self._bars.remove_task(self._listing)
                self._listing = None
            if name not in self._tasks:  # what was there before took no time, so the rate must not count it
                self._tasks[name] = self._bars.add_task(name, total=total[1], completed=done[1], count="")
            count = f"{done[0]}/{total[0]} {self._unit}"
            self._bars.update(self._tasks[name], completed=done[1], count=count)
        elif not self._quiet:
            self._line(name, done, total)

    def error(self, error: FeeddError) -> None:
        """Show an error at once."""
        if not self._quiet:
            say(error_line(error))

    def _line(self, name: str, done: tuple[int, int], total: tuple[int, int]) -> None:
        step, now_s = _STEPS * done[0] // total[0] if total[0] else _STEPS, time.monotonic()
        count, shown_step, shown_s = self._lines.get(name, (-1, -1, now_s))
        if done[0] == count or (step == shown_step and now_s - shown_s < _LINES_S):
            return
        self._lines[name] = done[0], step, now_s
        sizes = f"{format_size(done[1])} of {format_size(total[1])}"
        say(f"{name}{': ' if name else ''}{done[0]} of {total[0]} {self._unit}, {sizes}")


@contextmanager
def meter(unit: str, *, quiet: bool) -> Iterator[Meter]:
    """Yield a meter on standard error."""
    from rich.progress import TextColumn  # noqa: PLC0415 - see bars

    with bars(*byte_columns(TextColumn("{task.fields[count]}")), quiet=quiet) as shown:
        yield Meter(shown, unit=unit, quiet=quiet)
