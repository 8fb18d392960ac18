"""Arm: ``feedd pack`` in this process."""

from __future__ import annotations

import json
import sys

from feedd.cli.app import load, main
from tests.bench.arms.pack import measured


def _pack() -> None:
    settings = json.loads(sys.argv[1])
    sys.argv[1:] = ["pack", settings["source"], settings["target"], "--format", "tar"]
    sys.argv += ["--shard-size", str(settings["shard_bytes"]), "--json"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    load("pack")
    import uvloop  # noqa: F401 - as the command does before it begins

    import feedd.daemon.wiring
    import feedd.pack.pack_run  # noqa: F401 - see above

    measured(_pack)
