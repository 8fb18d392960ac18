"""``feedd serve`` with one task more in its loop, which notes how late the loop wakes it."""

from __future__ import annotations

import array
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd.cli import main as feedd

if TYPE_CHECKING:
    from collections.abc import Coroutine

_EVERY_S = 0.005


async def _note(found: array.array[float]) -> None:
    while True:
        due_s = time.perf_counter() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        now_s = time.perf_counter()
        found.extend((now_s, max(0.0, now_s - due_s)))


def main() -> None:
    """Run ``feedd`` with the arguments after the first; that one is the file for what is noted, written at the end."""
    path = Path(sys.argv.pop(1))
    run = asyncio.Runner.run

    def watched(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        found = array.array("d")

        async def both() -> Any:
            task = asyncio.create_task(_note(found))
            try:
                return await coroutine
            finally:
                task.cancel()

        try:
            return run(runner, both(), **options)
        finally:
            path.write_bytes(found.tobytes())

    asyncio.Runner.run = watched  # type: ignore[assignment, method-assign]  # the daemon has no door for a bench
    feedd()


if __name__ == "__main__":
    main()
