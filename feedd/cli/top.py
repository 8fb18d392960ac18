"""``feedd top``: shows a running daemon live, or once."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live

from feedd.cli.flags import ConfigFlag, Flags
from feedd.cli.running_daemon import NodeFlag, daemon_address
from feedd.cli.top_keys import keyboard, pressed
from feedd.cli.top_screen import ScreenState, draw
from feedd.config.types import is_unix
from feedd.errors import BadConfig, FeeddError, NotFound
from feedd.observe.page_access import page_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.view.node_model import Look, NodeModel
    from feedd.view.node_reader import NodeReader
    from feedd.view.node_view import NodeView

LOOK_S: Final = 1.0
"""Time between two looks at the daemon."""
_ONCE_S: Final = 2.0
"""Time that one frame measures."""
_SLOW_ONCE_S: Final = 10.0
"""The same, if a job takes no batch in that time: its steps may be long."""


def register(app: typer.Typer) -> None:
    """Add the ``top`` command."""

    @app.command(epilog="Example: feedd top --address unix:///run/feedd/feedd.sock")
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
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.view.node_reader import NodeReader  # noqa: PLC0415 - see above

    node = await stack.enter_async_context(node_at(address))
    reader = NodeReader(node.daemons, local=is_unix(address))
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
