"""Child processes that are always stopped: SIGTERM, a bounded wait, then SIGKILL."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from feedd.errors import FeeddError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

_TERM_S = 8.0
_LOG_TAIL_LINES = 12


async def start(
    stack: AsyncExitStack, module: str, arguments: list[str], env: dict[str, str], log: Path | None = None
) -> asyncio.subprocess.Process:
    """Start ``python -m module`` in a new session, so that Ctrl-C reaches only this process; stderr goes to ``log``."""
    sink = log.open("wb") if log else None
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "feedd.demo.child",
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
    stack.push_async_callback(stop, process)
    return process


async def stop(process: asyncio.subprocess.Process) -> None:
    """Stop a child process in any state and reap it."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_TERM_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def failed(what: str, log: Path, how: str) -> FeeddError:
    """Return the error for a child that did not start, with the last lines of its log."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return FeeddError(f"{what} {how}: " + " | ".join(lines[-_LOG_TAIL_LINES:]), stage="demo")
