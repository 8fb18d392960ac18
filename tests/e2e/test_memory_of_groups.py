"""Limits of memory that a machine sets from outside: the daemon's defaults stay inside, and who is killed says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.e2e.shards import numbered
from tests.fakes.disks import small_tmpfs
from tests.fakes.memory_group import memory_group

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1 << 20
_SHARDS, _EACH = 40, 8


@pytest.fixture
def data(s3: S3Server) -> dict[str, str]:
    """640 MiB of data; gives the environment of a daemon that reads them."""
    for shard in range(_SHARDS):
        s3.put("data", f"train/{shard:02}.tar", numbered(shard, _EACH, pad_bytes=2 * MIB))
    return os.environ | {"AWS_ENDPOINT_URL": s3.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


def _read(address: str | None, **options: Any) -> list[int]:
    dataset = FeedDataset("s3://data/train/", batch_size=8, fields={"cls": "int"}, address=address, **options)
    return [label for batch in dataset for label in batch["cls"].tolist()]


def test_defaults_stay_inside_a_small_group(data: dict[str, str], short_dir: Path) -> None:
    """In a group of 400 MiB, with a cache on tmpfs and no option set, data larger than the group is read twice."""
    address = f"unix://{short_dir}/feedd.sock"
    with memory_group(400 * MIB) as group, small_tmpfs(short_dir / "cache", "size=2g") as cache:
        feedd = f"{sys.executable} -m feedd serve --listen {address} --cache-dir {cache}/c --log json"
        command = ["bash", "-c", f"echo 0 > {group}/cgroup.procs && exec {feedd}"]
        log = short_dir / "log"
        with log.open("wb") as file:
            daemon = subprocess.Popen(command, env=data, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            deadline = time.monotonic() + 60
            while '"ready"' not in log.read_text():
                assert daemon.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            for _ in range(2):
                assert _read(address) == [shard * 1000 + number for shard in range(_SHARDS) for number in range(_EACH)]
            daemon.terminate()
            assert daemon.wait(30) == 0, log.read_text()
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


_TRAINER = """
import logging, os, signal, sys
from feedd_client import FeedDataset, autostart
from feedd_client.errors import DaemonUnreachable
logging.basicConfig(level="WARNING")
limits = dict(reconnect_timeout_s=float(sys.argv[1]), open_timeout_s=5.0)
dataset = FeedDataset("s3://data/train/", batch_size=8, fields={"cls": "int"}, **limits)
try:
    for number, batch in enumerate(dataset):
        if number == 0 and sys.argv[2] == "kill":
            autostart._children[0].kill()
except DaemonUnreachable as error:
    print(error)
"""


def _trained(env: dict[str, str], *arguments: str, before: str = "") -> tuple[str, str]:
    """Return what a trainer that starts its own daemon wrote to its standard output and error."""
    command = ["bash", "-c", f'{before} exec "$@"', "-", sys.executable, "-c", _TRAINER, *arguments]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


def test_the_client_tells_that_its_daemon_was_killed(data: dict[str, str], short_dir: Path) -> None:
    """If the started daemon dies by SIGKILL, the error says so, and so does the warning about the next daemon."""
    env = data | {"TMPDIR": str(short_dir), "XDG_RUNTIME_DIR": ""}
    said, _ = _trained(env, "0", "kill")
    assert "it was killed (SIGKILL), probably because memory ran out" in said
    assert "give the job more memory" in said
    assert "start a daemon with" not in said
    said, warned = _trained(env, "60", "kill")
    assert not said
    assert "because the former daemon ended: it was killed (SIGKILL), probably because memory ran out" in warned


def test_a_daemon_that_runs_out_of_memory(data: dict[str, str], short_dir: Path) -> None:
    """If the kernel kills the started daemon because the group of the job is full, the client names memory."""
    with memory_group(400 * MIB) as group, small_tmpfs(short_dir / "cache", "size=2g") as cache:
        # The trainer is outside of the group, so that the kernel chooses the daemon.
        program = short_dir / "feedd"
        program.write_text(f'#!/bin/sh\necho 0 > {group}/cgroup.procs\nexec {sys.executable} -m feedd "$@"\n')
        program.chmod(0o700)
        sizes = {"FEEDD_CACHE__DIR": f"{cache}/c", "FEEDD_CACHE__SIZE": "1GiB", "FEEDD_EXECUTABLE": str(program)}
        env = data | {"TMPDIR": str(short_dir), "XDG_RUNTIME_DIR": ""} | sizes
        said, warned = _trained(env, "0", "read")
    assert "probably because memory ran out" in said, (said, warned)
