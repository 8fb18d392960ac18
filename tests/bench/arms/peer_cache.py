"""Arm: nodes that read one data set, each with its daemon: seconds and CPU time of the daemons in a cold epoch."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from feedd_client import FeedDataset, Topology
from tests.bench.arms import daemon
from tests.bench.procs import process_cpu_s


def _listeners(count: int) -> list[socket.socket]:
    """Return sockets that listen on loopback and answer nobody."""
    found = []
    for _ in range(count):
        found.append(socket.socket())
        found[-1].bind(("127.0.0.1", 0))
        found[-1].listen(64)
    return found


def _read(settings: dict[str, Any], address: str, node: int) -> int:
    nodes = settings["node_count"]
    dataset = FeedDataset(
        settings["url"],
        batch_size=settings["batch_size"],
        fields={"tokens": settings["recipe"]},
        shuffle=True,
        sharding="replicated",
        uneven="allow",
        address=address,
        topology=Topology(nodes, node, 1, 0, nodes, node),
    )
    try:
        return sum(batch["tokens"].nbytes for batch in dataset)
    finally:
        dataset.close()


def main() -> None:
    """Run."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    nodes, silent = settings["node_count"], _listeners(settings["silent_count"])
    ports = _listeners(nodes)
    members = [f"127.0.0.1:{one.getsockname()[1]}" for one in (*ports, *silent)]
    for one in ports:
        one.close()
    with ExitStack() as stack:
        started = []
        for node in range(nodes):
            folder = Path(settings["run_dir"]) / str(node)
            (folder / "cache").mkdir(parents=True)
            own = {"run_dir": str(folder), "cache_dir": str(folder / "cache"), "workers": 1, "cache_size": "1GiB"}
            if settings["peers"]:
                os.environ |= {"FEEDD_PEERS__LISTEN": members[node], "FEEDD_PEERS__MEMBERS": ",".join(members)}
            started.append(daemon.start(own))
            stack.callback(daemon.stop, started[-1][0])
        for child, address in started:
            daemon.wait_ready(child, address)
        before, began_s = sum(process_cpu_s(child.pid) for child, _ in started), time.perf_counter()
        with ThreadPoolExecutor(nodes) as pool:
            read = list(pool.map(lambda node: _read(settings, started[node][1], node), range(nodes)))
        took_s = time.perf_counter() - began_s
        cpu_s = sum(process_cpu_s(child.pid) for child, _ in started) - before
    row = {"read_bytes": sum(read), "cold_s": took_s, "cpu_s_per_gb": cpu_s / sum(read) * 1e9}
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
