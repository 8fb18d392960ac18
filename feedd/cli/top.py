"""``feedd top``: shows a running daemon live, or once."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from feedd.cli.flags import ConfigFlag, Flags
from feedd.cli.report import clean
from feedd.cli.running import NodeFlag, daemon_address
from feedd.config.types import is_unix
from feedd.diagnosis.finding import STAGES
from feedd.errors import BadConfig, FeeddError, NotFound
from feedd.observe.page_access import page_file
from feedd.units import format_size
from feedd.view.node_view import ago, short_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from feedd.diagnosis.node import Look, NodeReader
    from feedd.view.node_model import NodeModel
    from feedd.view.node_view import JobView, NodeView, RankView, StageView

SORTS: Final = ("rank", "wait", "rate")
"""Orders of the ranks: by number, the longest wait first, the slowest first."""
PANELS: Final = ("ranks", "cache", "log", "samples")
HELP: Final = (
    ("q", "quit"),
    ("s", "sort ranks: by rank, by wait, by rate"),
    ("/", "show only jobs, folders, log lines and samples with a text; Enter ends, Esc clears"),
    ("Tab", "next panel: ranks, cache, log, bad samples"),
    ("Up Down", "scroll the panel"),
    ("Space", "pause"),
    ("?", "this help"),
)
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_BOX_MIN: Final = 12
_ONCE_LINES: Final = 9
_PANEL_LEAST: Final = 2
_WAIT_SOME, _WAIT_MUCH = 0.05, 0.30
_BOTTLENECK: Final = "bold yellow"
_CHIP: Final = "bold black on yellow"
_QUIET: Final = "dim"
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
LOOK_S: Final = 1.0
"""Time between two looks at the daemon."""
_ONCE_S: Final = 2.0
"""Time that one frame measures."""
_SLOW_ONCE_S: Final = 10.0
"""The same, if a job takes no batch in that time: its steps may be long."""


@dataclass(frozen=True, slots=True)
class ScreenState:
    """What the user chose.

    Attributes:
        sort: one of ``SORTS``.
        panel: one of ``PANELS``: the lower part of the screen.
        filter: a text that shown jobs, folders, lines and samples contain.
        typing: the user types the filter.
        paused: the view stands still.
        help: the keys are shown instead of the panel.
        scroll: first line of the panel.
        notice: a line instead of the keys; empty: none.
    """

    sort: str = "rank"
    panel: str = "ranks"
    filter: str = ""
    typing: bool = False
    paused: bool = False
    help: bool = False
    scroll: int = 0
    notice: str = ""


def top(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, measured over 2 s (slow jobs: up to 10 s), and exit.")
    ] = False,
    url: Annotated[
        bool,
        typer.Option("--url", help="Print the address of the web page, with the token that opens it, and exit."),
    ] = False,
    address: NodeFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Show what a running daemon does: jobs, the path of the data and its bottleneck, ranks, cache and errors.

    You see your own jobs, or all if you administer the daemon. Without a terminal, one frame is printed.
    """
    found = daemon_address(address, Flags(config=config).load().config)
    if url:
        typer.echo(_page_url(found))
        return
    console = Console()
    if once or not (console.is_terminal and sys.stdin.isatty()):
        asyncio.run(_once(found, console))
    else:
        asyncio.run(_Screen(found, console).run())


def _page_url(address: str) -> str:
    """Return the address of the daemon's web page, which the daemon has written beside its socket.

    Raises:
        BadConfig: the address is no Unix socket.
        NotFound: there is no such file, or this user may not read it.
    """
    path = page_file(address)
    if path is None:
        raise BadConfig("expected unix:///path, as only sockets have a file beside them", object=address, stage="cli")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(
            f"expected the address of the web page, got {error}",
            object=str(path),
            hint="is the daemon running, and its status on? Only its user and root may read this file",
            stage="cli",
        ) from None


async def _open(stack: AsyncExitStack, address: str) -> NodeReader:
    """Connect to all daemons of a node.

    Raises:
        NotFound: no daemon answers.
    """
    from feedd.diagnosis.node import NodeReader  # noqa: PLC0415 - see above
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - gRPC takes a third of a second to import

    node = await stack.enter_async_context(node_at(address))
    reader = NodeReader([one.observe for one in node.daemons], local=is_unix(address))
    stack.callback(reader.close)
    return reader


async def _once(address: str, console: Console) -> None:
    from feedd.view.node_model import NodeModel  # noqa: PLC0415 - see _open

    model = NodeModel()
    async with AsyncExitStack() as stack:
        reader = await _open(stack, address)
        model.add(await reader.look())
        view = await measured_once(reader.look, model, asyncio.sleep)
    for line in draw(view, ScreenState(), console.width, None):
        console.print(line, overflow="crop", no_wrap=True)


async def measured_once(
    look: Callable[[], Awaitable[Look]], model: NodeModel, sleep: Callable[[float], Awaitable[object]]
) -> NodeView:
    """Return the node after 2 s, or later: as soon as each job took a batch, and after 10 s at the latest.

    Args:
        look: looks at the node.
        model: has one look already.
        sleep: waits so many seconds.
    """
    await sleep(_ONCE_S)
    view = model.add(await look())
    for _ in range(round((_SLOW_ONCE_S - _ONCE_S) / LOOK_S)):
        if all(job.batches_per_s for job in view.jobs):
            break
        await sleep(LOOK_S)
        view = model.add(await look())
    return view


class _Screen:
    """The live screen."""

    def __init__(self, address: str, console: Console) -> None:
        from feedd.view.node_view import NodeView  # noqa: PLC0415 - see _open

        self._address = address
        self._console = console
        self._state = ScreenState()
        self._view: NodeView = NodeView()
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Show the node until the user quits.

        Raises:
            NotFound: no daemon answers at the start. Later, the screen waits for it.
        """
        async with AsyncExitStack() as first:
            await _open(first, self._address)
        with self._live, keyboard(sys.stdin.fileno(), self._on_key):
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._look_on())
                await self._over.wait()
                looking.cancel()

    async def _look_on(self) -> None:
        while True:
            try:
                await self._look_until_lost()
            except FeeddError as error:
                self._state = replace(self._state, notice=f"waiting for the daemon: {error.message}")
                self._paint()
            await asyncio.sleep(LOOK_S)

    async def _look_until_lost(self) -> None:
        from feedd.view.node_model import NodeModel  # noqa: PLC0415 - see _open

        model, loop = NodeModel(), asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            reader = await _open(stack, self._address)
            due_s = loop.time()
            while True:
                view = model.add(await reader.look())
                self._state = replace(self._state, notice="")
                if not self._state.paused:
                    self._view = view
                    self._paint()
                due_s = max(due_s + LOOK_S, loop.time())
                await asyncio.sleep(due_s - loop.time())

    def _on_key(self, key: str) -> None:
        state = pressed(self._state, key)
        if state is None:
            self._over.set()
            return
        self._state = state
        self._paint()

    def _paint(self) -> None:
        size = self._console.size
        self._live.update(Group(*draw(self._view, self._state, size.width, size.height)), refresh=True)


def draw(view: NodeView, state: ScreenState, width: int, height: int | None) -> list[Text]:
    """Return the lines of one frame.

    Args:
        view: what is shown.
        state: what the user chose.
        width: columns.
        height: lines; None: as many as there are, with all panels.
    """
    lines = [_header(view, state, width), Text(), *_path(view.stages, width), *_verdict(view, width), Text()]
    lines += _jobs(view, state, width)
    lines.append(Text())
    if height is None:
        for name in PANELS:
            panel = _panel(name, view, state, width)
            if len(panel) > 1:
                lines += [*(panel if name == "ranks" else _scrolled(panel, 0, _ONCE_LINES)), Text()]
        return [_fitted(line, width) for line in lines[:-1]]
    first = PANELS.index(state.panel)
    panels = [_help()] if state.help else [_panel(name, view, state, width) for name in PANELS[first:] + PANELS[:first]]
    for number, panel in enumerate(panels):
        room = height - len(lines) - 1
        if number and (room < _PANEL_LEAST or len(panel) < _PANEL_LEAST):
            continue
        lines += [*_scrolled(panel, 0 if number else state.scroll, max(0, room)), Text()]
    lines = lines[: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    return [_fitted(line, width) for line in (*lines, _footer(state))]


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _scrolled(lines: list[Text], scroll: int, room: int) -> list[Text]:
    """Return the title and as many lines from ``scroll`` on as there is room for."""
    if len(lines) <= room:
        return lines
    begin = max(0, min(scroll, len(lines) - room))
    title, rest = lines[0].copy(), lines[1:]
    shown = rest[begin : begin + room - 1]
    title.append(f"  {begin + 1} to {begin + len(shown)} of {len(rest)} lines", _QUIET)
    return [title, *shown]


def _header(view: NodeView, state: ScreenState, width: int) -> Text:
    line = Text("feedd top", "bold")
    line.append(f"  {clean(view.host)}" if view.host else "", "bold")
    about = [view.state, f"up {short_time(view.uptime_s)}", view.version]
    about += [f"{view.lane_count} lanes"] if view.lane_count > 1 else []
    line.append("  " + " · ".join(about), _QUIET)
    right = "paused" if state.paused else f"last {view.window_s:.0f} s" if view.window_s else "measuring"
    line.append(" " * max(1, width - line.cell_len - len(right)))
    line.append(right, "reverse" if state.paused else _QUIET)
    return line


def _path(stages: Sequence[StageView], width: int) -> list[Text]:
    """Return the path as boxes side by side, or as a list if there is no room for boxes."""
    if not stages:
        return []
    box = min(22, (width - len(stages) + 1) // len(stages))
    if box < _BOX_MIN:
        return [_stage_line(one, width) for one in stages]
    wide = any(len(one.detail) <= box - 2 and one.detail for one in stages) and box > _BOX_MIN + 2
    rows = [Text() for _ in range(5 if wide else 4)]
    for number, one in enumerate(stages):
        inner, edge = box - 2, _BOTTLENECK if one.limits else _QUIET
        name = f" {one.name} "
        rows[0].append("╭", edge).append(name, _CHIP if one.limits else "bold")
        rows[0].append("─" * (inner - len(name)) + "╮", edge)
        rate = f"{one.rate} {one.unit}".strip()
        rate = rate if len(rate) < inner else f"{one.rate}/s"
        cells = [Text(_cell(rate, inner)), _meter(one, inner)]
        cells += [Text(_cell(one.detail, inner), _QUIET)] if wide else []
        for row, cell in zip(rows[1:-1], cells, strict=True):
            row.append("│", edge).append_text(cell).append("│", edge)
        rows[-1].append("╰" + "─" * inner + "╯", edge)
        for place, row in enumerate(rows):
            row.append("" if number == len(stages) - 1 else "▶" if place == 1 else " ", _QUIET)
    return rows


def _stage_line(one: StageView, width: int) -> Text:
    line = Text(f"{one.name:<9}", _CHIP if one.limits else "bold")
    line.append(f" {one.rate} {one.unit}".ljust(18))
    return line.append_text(_meter(one, min(24, max(4, width - 30))))


def _cell(text: str, width: int) -> str:
    return (f" {text}" if len(text) < width else text)[:width].ljust(width)


def _meter(one: StageView, width: int) -> Text:
    """Return a level as a bar behind its own words."""
    text = _cell(one.level_text, width)
    if one.level is None:
        return Text(text, _QUIET)
    full = round(one.level * width)
    colour = "black on yellow" if one.limits else "black on cyan"
    return Text().append(text[:full], colour).append(text[full:])


def _verdict(view: NodeView, width: int) -> list[Text]:
    found = view.verdict
    if found is None:
        return [Text(f"○ {view.waiting}", _QUIET)]
    lines = [Text("● ", _BOTTLENECK if view.limits else "bold green")]
    lines[0].append(f"{clean(view.verdict_job)}: " if view.verdict_job else "").append(found.about.title, "bold")
    lines[0].append(f"  {found.finding.verdict}", _QUIET)
    lines += _wrapped("  do   ", found.finding.advice, width)
    more = [found.knob, found.gain, f"then {STAGES[found.behind]} limits" if found.behind else ""]
    text = "; ".join(one for one in more if one)
    return [*lines, *(_wrapped("  turn " if found.knob else "       ", text, width) if text else [])]


def _wrapped(label: str, text: str, width: int) -> list[Text]:
    """Return text in lines, the first behind its label."""
    lines, line = [], label
    for word in clean(text).split():
        if len(line) + 1 + len(word) > width and line.strip():
            lines.append(Text(line))
            line = " " * (len(label) - 1)
        line += (" " if not line.endswith(" ") or line == label[:-1] else "") + word
    lines.append(Text(line))
    lines[0].stylize(_QUIET, 0, len(label))
    return lines


def _matches(state: ScreenState, *texts: str) -> bool:
    return not state.filter or any(state.filter.lower() in text.lower() for text in texts)


def _jobs(view: NodeView, state: ScreenState, width: int) -> list[Text]:
    shown = [one for one in view.jobs if _matches(state, one.name, one.owner, *one.urls)]
    name_width = max(12, min(40, width - 62))
    bar = max(6, min(30, width - name_width - 52))
    title = Text(f"{'job':<{name_width}} {'epoch':>5}  {'progress':<{bar + 5}} {'ends in':>8} ", "bold")
    title.append(f"{'batches/s':>9} {'waits':>6} {'cached':>6}")
    if not shown:
        return [title, Text("no job" if not view.jobs else f"no job has {state.filter!r}", _QUIET)]
    return [title, *(_job(one, name_width, bar) for one in shown)]


def _job(one: JobView, name_width: int, bar: int) -> Text:
    ranks = f" ({one.rank_count} of {one.world_size} ranks)" if one.world_size > 1 else ""
    name = clean(one.name)
    label = name + ranks if len(name + ranks) <= name_width else name[: name_width - 1] + "…" * (len(name) > name_width)
    line = Text(f"{label[:name_width]:<{name_width}} {one.epoch:>5}  ")
    progress = one.progress
    if progress is None:
        line.append(f"step {one.step:,}".ljust(bar + 5))
    else:
        line.append_text(_bar(progress, bar)).append(f" {progress:>4.0%}")
    line.append(f" {'-' if one.eta_s is None else short_time(one.eta_s):>8}")
    line.append(f" {one.batches_per_s:>9.1f}")
    line.append(f" {one.wait:>6.0%}", _heat(one.wait))
    return line.append(f" {'-' if one.cached is None else f'{one.cached:.0%}':>6}")


def _bar(share: float, width: int) -> Text:
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return Text(text.ljust(width), "cyan")


def _heat(wait: float) -> str:
    return "green" if wait < _WAIT_SOME else "yellow" if wait < _WAIT_MUCH else "bold red"


def _panel(name: str, view: NodeView, state: ScreenState, width: int) -> list[Text]:
    match name:
        case "ranks":
            return _ranks(view, state, width)
        case "cache":
            return _cache(view, state, width)
        case "log":
            return _log(view, state)
    return _samples(view, state)


def _title(name: str, about: str) -> Text:
    return Text(name, "bold").append(f"  {about}" if about else "", _QUIET)


def _ranks(view: NodeView, state: ScreenState, width: int) -> list[Text]:
    jobs = {number for number, one in enumerate(view.jobs) if _matches(state, one.name, one.owner, *one.urls)}
    shown = sorted((one for one in view.ranks if one.job in jobs), key=_order(state.sort))
    title = _title("ranks", f"time that each waits for a batch, sorted by {state.sort}")
    if not shown:
        return [title]
    columns = max(1, min(width // 60, -(-len(shown) // 4)))
    cell = width // columns
    several = len(view.jobs) > 1
    cells = [_rank(one, view.jobs[one.job].name if several else "", cell - 2) for one in shown]
    lines = []
    for row in range(-(-len(cells) // columns)):
        line = Text()
        for one in cells[row * columns : (row + 1) * columns]:
            line.append_text(one).append("  ")
        lines.append(line)
    return [title, *lines]


def _order(sort: str) -> Callable[[RankView], tuple[float, ...]]:
    if sort == "wait":
        return lambda one: (-one.wait, one.job, one.rank)
    if sort == "rate":
        return lambda one: (one.batches_per_s, one.job, one.rank)
    return lambda one: (one.job, one.rank)


def _rank(one: RankView, job: str, width: int) -> Text:
    label = f"{one.rank:>4}" + (f" {clean(job)[:14]:<14}" if job else "")
    words = f" {one.wait:>4.0%} {one.batches_per_s:>7.1f}/s  {one.state:<22}"
    spark = max(4, width - len(label) - len(words) - 1)
    points = one.waits[-spark:]
    line = Text(f"{label} ")
    line.append("".join(_block(wait) for wait in points).rjust(spark), _heat(one.wait))
    return line.append(words[:5], _heat(one.wait)).append(words[5:])


def _block(share: float) -> str:
    return _BLOCKS[max(1, min(8, round(share * 8)))]


def _cache(view: NodeView, state: ScreenState, width: int) -> list[Text]:
    cache = view.cache
    title = _title("cache", f"{format_size(cache.used_bytes)} of {format_size(cache.limit_bytes)}")
    if not cache.limit_bytes:
        return [Text("no cache", _QUIET)]
    if cache.arriving_bytes:
        title.append(f", {format_size(cache.arriving_bytes)} arriving", _QUIET)
    lines = [title]
    bar = max(8, min(40, width // 3))
    for one in cache.folders:
        if not _matches(state, one.url):
            continue
        share = one.size_bytes / cache.limit_bytes
        used = f"{one.pinned_bytes / one.size_bytes:.0%} in use" if one.pinned_bytes else ""
        facts = f" {format_size(one.size_bytes):>9}  {one.entry_count:>7,} shards  {used:<12} "
        lines.append(_bar(share, bar).append(facts).append(clean(one.url) or "all others"))
    return lines


def _log(view: NodeView, state: ScreenState) -> list[Text]:
    shown = [one for one in view.log if _matches(state, one.text)]
    lines = [_title("log", "warnings and errors, the newest first" if shown else "no warnings and errors")]
    for one in shown:
        times = f" ({one.count} times)" if one.count > 1 else ""
        line = Text(f"{ago(one.age_s):>10}  ", _QUIET)
        lines.append(line.append(clean(one.text), "red" if one.level == "error" else "yellow").append(times))
    return lines


def _samples(view: NodeView, state: ScreenState) -> list[Text]:
    shown = [one for one in view.bad_samples if _matches(state, one.url, one.key, one.reason)]
    lines = [_title("bad samples", f"{view.bad_sample_count:,} since the start")]
    for one in shown:
        line = Text(f"{ago(one.age_s):>10}  ", _QUIET)
        line.append(f"{clean(one.key)} {clean(one.field)} ", "bold").append(f"{one.outcome}: {clean(one.reason)}  ")
        lines.append(line.append(clean(one.url), _QUIET))
    return lines if view.bad_sample_count else lines[:1]


def _help() -> list[Text]:
    return [Text("keys", "bold"), *(Text(f"  {key:<9}").append(text, _QUIET) for key, text in HELP)]


def _footer(state: ScreenState) -> Text:
    if state.typing:
        return Text(f"show only: {clean(state.filter)}▌", "reverse")
    if state.notice:
        return Text(clean(state.notice), "red")
    names: Iterable[tuple[str, str]] = (
        ("q", "quit"),
        ("s", f"sort: {state.sort}"),
        ("/", f"filter: {clean(state.filter) or 'all'}"),
        ("Tab", state.panel),
        ("Space", "go on" if state.paused else "pause"),
        ("?", "help"),
    )
    line = Text()
    for key, text in names:
        line.append(f" {key} ", "reverse").append(f" {text}  ")
    return line


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


def register(app: typer.Typer) -> None:
    """Add the ``top`` command."""
    app.command(epilog="Example: feedd top --address unix:///run/feedd/feedd.sock")(top)
