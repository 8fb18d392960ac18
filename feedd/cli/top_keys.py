"""Keys of ``feedd top``: reads them from a terminal, and says what each changes."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from feedd.cli.top_screen import PANELS, SORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from feedd.cli.top_screen import ScreenState

_READ_BYTES: Final = 64
_FILTER_MAX: Final = 60
_PAGE: Final = 10
_ENDS: Final = {"\x03", "\x04"}
_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}
_SCROLLS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -_PAGE, "page down": _PAGE}


def split_keys(text: str) -> Iterator[str]:
    """Yield the keys of what was read: characters, and names for arrows."""
    at = 0
    while at < len(text):
        sequence = next((one for one in _SEQUENCES if text.startswith(one, at)), None)
        yield text[at] if sequence is None else _SEQUENCES[sequence]
        at += 1 if sequence is None else len(sequence)


def pressed(state: ScreenState, key: str) -> ScreenState | None:
    """Return what the user has chosen after a key; None: to quit."""
    if key in _ENDS:
        return None
    if state.typing:
        return _typed(state, key)
    if key == "q":
        return None
    if key in _SCROLLS:
        return replace(state, scroll=max(0, state.scroll + _SCROLLS[key]))
    return replace(state, **_changes(state, key))


def _changes(state: ScreenState, key: str) -> dict[str, Any]:
    """Return the attributes that a key changes."""
    changes: dict[str, dict[str, Any]] = {
        "s": {"sort": _next(SORTS, state.sort), "panel": "ranks", "help": False, "scroll": 0},
        "\t": {"panel": _next(PANELS, state.panel), "help": False, "scroll": 0},
        "/": {"typing": True, "filter": ""},
        " ": {"paused": not state.paused},
        "?": {"help": not state.help, "scroll": 0},
        "\x1b": {"filter": "", "help": False},
    }
    return changes.get(key, {})


def _typed(state: ScreenState, key: str) -> ScreenState:
    if key in {"\r", "\n"}:
        return replace(state, typing=False, scroll=0)
    if key == "\x1b":
        return replace(state, typing=False, filter="")
    if key in {"\x7f", "\b"}:
        return replace(state, filter=state.filter[:-1])
    if len(key) == 1 and key.isprintable():
        return replace(state, filter=(state.filter + key)[:_FILTER_MAX])
    return state


def _next(names: tuple[str, ...], now: str) -> str:
    return names[(names.index(now) + 1) % len(names)]


@contextmanager
def keyboard(fd: int, on_key: Callable[[str], None]) -> Iterator[None]:
    """Call ``on_key`` for each key that is typed at the terminal ``fd``; the terminal is as before afterwards."""
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in split_keys(os.read(fd, _READ_BYTES).decode("utf-8", "replace")):
            on_key(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
