"""Shows the progress of ``feedd files``: a bar for each channel on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.progress import TextColumn

from feedd.cli.error_report import say
from feedd.cli.progress_bars import bars, byte_columns
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress, TaskID

    from feedd.file_mode.files_run import ChannelFiles

_BARS_S = 0.25
_LINES_S = 10.0


class FilesDisplay:
    """Shows nothing; the base of the displays that do.

    Attributes:
        every_s: time between two looks at the channels.
    """

    every_s = _LINES_S

    def show(self, channels: Sequence[ChannelFiles]) -> None:
        """Show how far the channels are."""

    async def watch(self, channels: Sequence[ChannelFiles]) -> None:
        """Show the channels again and again, until cancelled."""
        while True:
            self.show(channels)
            await asyncio.sleep(self.every_s)


class _Lines(FilesDisplay):
    """Writes a line for each channel that has changed."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[int, int]] = {}

    def show(self, channels: Sequence[ChannelFiles]) -> None:
        for channel in channels:
            done = channel.done_count, channel.done_bytes
            if self._shown.get(channel.name) != done:
                self._shown[channel.name] = done
                say(
                    f"channel {channel.name}: {done[0]} of {len(channel.wanted)} files,"
                    f" {format_size(done[1])} of {format_size(channel.total_bytes)}"
                )


class _Bars(FilesDisplay):
    """Draws a bar for each channel."""

    every_s = _BARS_S

    def __init__(self, shown: Progress) -> None:
        self._bars = shown
        self._tasks: dict[str, TaskID] = {}

    def show(self, channels: Sequence[ChannelFiles]) -> None:
        for channel in channels:
            if channel.name not in self._tasks:
                self._tasks[channel.name] = self._bars.add_task(channel.name, total=channel.total_bytes, files="")
                # files that were there before took no time, so the rate must not count them
                self._bars.update(self._tasks[channel.name], completed=channel.present_bytes)
            files = f"{channel.done_count}/{len(channel.wanted)} files"
            self._bars.update(self._tasks[channel.name], completed=channel.done_bytes, files=files)


@contextmanager
def files_display(stream: IO[str], *, quiet: bool) -> Iterator[FilesDisplay]:
    """Yield a display that shows progress on ``stream``; ``quiet``: a display that shows nothing."""
    console = Console(file=stream)
    if quiet:
        yield FilesDisplay()
    elif console.is_terminal:
        with bars(console, *byte_columns(TextColumn("{task.fields[files]}"))) as shown:
            yield _Bars(shown)
    else:
        yield _Lines()
