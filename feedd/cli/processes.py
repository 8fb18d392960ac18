"""Child processes of a command, which always end: SIGTERM, a bounded wait, then SIGKILL."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

from feedd.errors import FeeddError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

_READY_S: Final = 60.0
_POLL_S: Final = 0.05
_TERM_S: Final = 8.0
_LOG_TAIL_LINES: Final = 12


async def start(
    stack: AsyncExitStack, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path | None = None
) -> asyncio.subprocess.Process:
    """Start ``python -m module`` in a new session, so that Ctrl-C reaches only this process; stderr goes to ``log``."""
    sink = log.open("wb") if log else None
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "feedd.flow.parent_death",
            module,
            *arguments,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
            limit=1 << 20,
        )
    finally:
        if sink:
            sink.close()
    stack.push_async_callback(_stop, process)
    return process


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop a child process in any state and reap it."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_TERM_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def until_ready(
    process: asyncio.subprocess.Process, log: Path, what: str, answers: Callable[[], Awaitable[object]]
) -> None:
    """Wait until a child answers.

    Args:
        process: the child.
        log: its log, whose last lines the error has.
        what: names the child.
        answers: fails with FeeddError or OSError until the child is ready.

    Raises:
        FeeddError: the child ended, or was not ready in time.
    """
    how = "ended early"
    try:
        async with asyncio.timeout(_READY_S):
            while process.returncode is None:
                try:
                    await answers()
                except (FeeddError, OSError):
                    await asyncio.sleep(_POLL_S)  # another process's readiness can only be polled
                else:
                    return
    except TimeoutError:
        how = f"was not ready within {_READY_S:.0f} s"
    raise FeeddError(f"{what} {how}: {_end_of(log)}", stage="cli")


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " | ".join(lines[-_LOG_TAIL_LINES:])


async def start_daemon(
    stack: AsyncExitStack, name: str, address: str, arguments: Sequence[str], env: Mapping[str, str], log: Path
) -> None:
    """Start a daemon that listens at ``address``, without a status page; return when it is ready.

    Raises:
        FeeddError: it ended, or was not ready in time.
    """
    from feedd.serve.admin_client import daemon_at  # noqa: PLC0415 - gRPC takes a third of a second to import

    async def answers() -> None:
        async with daemon_at(address) as client:
            await client.stats()

    own = ["--listen", address, "--status", "off", "--log", "text"]
    process = await start(stack, "feedd", ["serve", *arguments, *own], env, log)
    await until_ready(process, log, name, answers)
