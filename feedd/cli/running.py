"""Runs the work of a command: on an event loop of its own, or by the daemon that owns the cache."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from feedd.config.types import UNIX_PREFIX, is_unix
from feedd.errors import FeeddError, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from feedd.catalog.sources import Sources
    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.flow.loop_thread import WorkLoop
    from feedd.lanes.node_client import NodeClient
    from feedd.protocols import Recorder
    from feedd.serve.server_options import CacheState
    from feedd.sessions.opening import Pipeline

_T = TypeVar("_T")


def run_async(work: Coroutine[object, object, _T]) -> _T:
    """Return the result of ``work``, run on an event loop of its own.

    Raises:
        As ``work`` does; of several errors at once, the one to show.
    """
    # uvloop and the daemon's parts take long to import; a wrong flag is reported before that.
    import uvloop  # noqa: PLC0415 - see above

    from feedd.daemon.failures import single  # noqa: PLC0415 - see above

    try:
        return uvloop.run(work)
    except BaseExceptionGroup as group:
        raise single(group) from group


def run_stoppable(work: Callable[[StopRequests], Coroutine[object, object, _T]]) -> _T:
    """Return the result of ``work``, run as by ``run_async``; it is given the signals that came.

    Raises:
        As ``run_async`` does.
    """
    # The SDK takes most of a second to import; a wrong flag is reported before that.
    from feedd.daemon.signals import StopRequests, handled  # noqa: PLC0415 - see above

    async def run() -> _T:
        requests = StopRequests()
        with handled(requests):
            return await work(requests)

    return run_async(run())


def open_stores(config: Config, recorder: Recorder | None = None, work_loop: WorkLoop | None = None) -> Sources:
    """Return the stores of a configuration, to be entered, for a command that reads them without a daemon."""
    # The SDK takes most of a second to import, and --help and most other commands do not need it.
    from feedd.catalog.sources import Sources  # noqa: PLC0415 - see above
    from feedd.clock import SystemClock  # noqa: PLC0415 - see above
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - see above
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - see above

    return Sources(source_options(config), recorder or NullRecorder(), SystemClock(), work_loop)


def open_parts(config: Config, recorder: Recorder | None = None) -> AbstractAsyncContextManager[Pipeline]:
    """Return what a daemon opens to read datasets, to be entered, for a command that needs no daemon."""
    from feedd.clock import SystemClock  # noqa: PLC0415 - as above
    from feedd.daemon.wiring import open_pipeline  # noqa: PLC0415 - as above
    from feedd.observe.recorder import NullRecorder  # noqa: PLC0415 - as above

    return open_pipeline(config, recorder or NullRecorder(), SystemClock())


AddressFlag = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ask the daemon at unix:///path.sock or host:port. Default: $FEEDD_ADDRESS, unless --cache-dir is given; "
        "else the daemon that owns the configured cache directory; without a daemon, the directory itself is used.",
    ),
]

NodeFlag = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ask the daemon at unix:///path.sock or host:port. Default: $FEEDD_ADDRESS; else the configured socket; "
        "without that socket, the daemon that your last job started.",
    ),
]


def chosen_address(address: str | None, cache_dir: Path | None) -> str | None:
    """Return the daemon that the user named: by flag, else by ``$FEEDD_ADDRESS`` unless ``--cache-dir`` is given."""
    return address or (None if cache_dir else os.environ.get("FEEDD_ADDRESS")) or None


def daemon_address(address: str | None, config: Config) -> str:
    """Return the address that the user named, else the first Unix socket of the configuration.

    If there is no such socket, the daemon that a job of this user started last is taken.

    Raises:
        NotFound: there is none of these.
    """
    configured = next(filter(is_unix, config.listen), None)
    found = chosen_address(address, None)
    if found is None and (configured is None or not Path(configured.removeprefix(UNIX_PREFIX)).is_socket()):
        found = started_daemon(os.environ)
    found = found or configured
    if found is None:
        raise NotFound(
            "expected the address of a daemon, got none", hint="pass --address unix:///path.sock", stage="cli"
        )
    return found


def started_daemon(env: Mapping[str, str]) -> str | None:
    """Return the address of the daemon that a job of this user started last; None: there is none.

    ``feedd_client.autostart`` decides where these daemons listen.
    """
    found: list[tuple[float, Path]] = []
    parents = [env.get("XDG_RUNTIME_DIR") or "/nowhere", "/tmp"]  # noqa: S108 - the owner is checked below
    with contextlib.suppress(FileNotFoundError):  # no temporary folder is writable
        parents.append(tempfile.gettempdir())
    for parent in dict.fromkeys(parents):
        folder = Path(parent, f"feedd-{os.geteuid()}")
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
                found += [(path.stat().st_mtime, path) for path in folder.glob("*/feedd.sock") if path.is_socket()]
    return f"{UNIX_PREFIX}{max(found)[1]}" if found else None


@asynccontextmanager
async def owner_of(config: Config, address: str | None) -> AsyncIterator[tuple[NodeClient, CacheState] | None]:
    """Yield the daemon to ask, with the current state of its cache; None if no daemon owns the cache.

    Raises:
        NotFound: no daemon answers at ``address``, or a lane of the daemon's node does not answer.
    """
    async with AsyncExitStack() as stack:
        for one in [address] if address else _sockets(config):
            # gRPC takes a third of a second to import, so only import it if there is a daemon to ask.
            from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above
            from feedd.serve.admin_client import daemon_at  # noqa: PLC0415 - see above

            if not address:
                try:
                    first = await stack.enter_async_context(daemon_at(one))
                    owned = await first.cache_state()
                except FeeddError:
                    continue  # a leftover socket
                if owned is None or Path(owned.directory) != config.cache.dir:
                    continue
            node = await stack.enter_async_context(node_at(one))
            state = await node.cache_state()
            if state is not None:
                yield node, state
                return
        yield None


def _sockets(config: Config) -> Iterator[str]:
    for listen in config.listen:
        if listen.startswith(UNIX_PREFIX) and Path(listen.removeprefix(UNIX_PREFIX)).is_socket():
            yield listen


def ask(config: Config, address: str | None, question: Callable[[NodeClient, CacheState], Awaitable[_T]]) -> _T | None:
    """Put a question to the daemon that owns the configured cache; return None if no daemon does."""

    async def run() -> _T | None:
        async with owner_of(config, address) as owner:
            return None if owner is None else await question(*owner)

    return asyncio.run(run())
