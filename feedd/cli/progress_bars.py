"""The bars that commands draw on a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import ProgressColumn


def bars(console: Console, *columns: ProgressColumn, transient: bool = False) -> Progress:
    """Return bars with a description, ``columns`` and the time that is left; ``transient``: they vanish at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=transient,
    )


def byte_columns(*between: ProgressColumn) -> tuple[ProgressColumn, ...]:
    """Return columns with the bytes so far, then ``between``, then the rate."""
    return DownloadColumn(binary_units=True), *between, TransferSpeedColumn()


@contextmanager
def bar_for_listing(*columns: ProgressColumn, quiet: bool) -> Iterator[Callable[..., object]]:
    """Yield what updates a bar on stderr, which says "listing" until then; not a terminal, or ``quiet``: no bar.

    It takes ``description``, ``total`` and ``completed``.
    """
    console = Console(file=sys.stderr)
    if quiet or not console.is_terminal:
        yield lambda **_: None
        return
    with bars(console, *columns, transient=True) as shown:
        task = shown.add_task("listing", total=None)
        yield lambda **facts: shown.update(task, **facts)
