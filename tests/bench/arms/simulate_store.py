"""The S3 server of the bench ``simulate``, as a process: late answers, and one rate for all bodies together."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.fakes.s3.faults import Script, SharedRate
from tests.fakes.s3.server import S3Server


def main() -> None:
    """Serve until SIGTERM; the first line is the URL."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    server = S3Server(Path(settings["root"]), latency_s=settings["latency_s"])
    if settings["bytes_s"]:
        script = Script()
        script.rate = SharedRate(settings["bytes_s"])
        server.follow(script)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve(ready=lambda: sys.stdout.write(server.url + "\n") and sys.stdout.flush())

    asyncio.run(run())


if __name__ == "__main__":
    main()
