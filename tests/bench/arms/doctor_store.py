"""The scripted S3 server of a scenario, as a process: its first line is its URL."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.fakes.s3.faults import SharedRate, late
from tests.fakes.s3.refusing import Refusing
from tests.fakes.s3.server import S3Server


def main() -> None:
    """Serve until SIGTERM."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    bytes_s = settings.get("bytes_s", 0.0)
    rate = SharedRate(bytes_s) if bytes_s else None
    script = Refusing(settings.get("refused_share", 0.0), settings["seed"], rate)
    script.add("LIST", "*", "*", (), late(settings.get("list_s", 0.0)))
    script.add("GET", "*", "*", (), late(settings.get("latency_s", 0.0)))
    server = S3Server(Path(settings["root"]))
    server.follow(script)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve(ready=lambda: sys.stdout.write(server.url + "\n") and sys.stdout.flush())

    asyncio.run(run())


if __name__ == "__main__":
    main()
