"""The scripts of deploy/slurm, run as Slurm runs them: a real daemon for a job, or one that a test scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from feedd_client import FeedDataset
from tests.budget import PATIENT_S
from tests.e2e.shards import numbered
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPTS: Final = ROOT / "deploy" / "slurm"
JOB: Final = 4711
_OPTIONS: Final = (
    "FEEDD_STATUS=off",
    "FEEDD_DECODE__WORKERS=1",
    "FEEDD_CACHE__SIZE=64MiB",
    "FEEDD_CACHE__FREE_RESERVE=16MiB",
)
_LISTENS: Final = """#!{python}
import signal, socket, sys, time
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[sys.argv.index("--listen") + 1].removeprefix("unix://"))
    time.sleep(60)
"""


@dataclass
class Node:
    """A node on which Slurm runs jobs. Scripts see nothing of this process's environment, as with slurmd."""

    home: Path
    feedd: Path
    stop_timeout_s: int = 10
    peers_port: str = ""
    code: int | None = None

    def run(self, script: str, *, environment: dict[str, str] | None = None, job: object = JOB) -> str:
        """Run one script for the job; return what it prints. Like Slurm, kill its process group afterwards."""
        (self.home / "feedd-slurm.conf").write_text(
            "\n".join(
                [
                    f"FEEDD={self.feedd}",
                    'PARTITIONS="gpu"',
                    f"RUN_DIR={self.home}/run",
                    f"CACHE_ROOT={self.home}/cache",
                    "START_TIMEOUT_S=30",
                    f"STOP_TIMEOUT_S={self.stop_timeout_s}",
                    f"OPTIONS=({' '.join(_OPTIONS)})",
                    f'PEERS_PORT="{self.peers_port}"',
                    f"SCONTROL={self.home}/scontrol",
                ]
            )
        )
        process = subprocess.Popen(
            [SCRIPTS / script],
            env={
                "PATH": os.defpath,
                "FEEDD_SLURM_CONF": str(self.home / "feedd-slurm.conf"),
                "SLURM_JOB_ID": str(job),
                "SLURM_JOB_UID": str(os.getuid()),
                "SLURM_JOB_PARTITION": "gpu",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        told, _ = process.communicate(timeout=PATIENT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.code = process.returncode
        return told

    def processes(self) -> list[psutil.Process]:
        """Return the processes that name this node's socket."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(f"{self.home}/run" in word for word in process.info["cmdline"] or ())
        ]

    def files(self) -> list[str]:
        """Return what lies in the folders of sockets and caches."""
        return sorted(path.name for name in ("run", "cache") for path in (self.home / name).glob("*"))


@pytest.fixture
def node(short_dir: Path) -> Iterator[Node]:
    """A node whose daemon is scripted: it listens, and does nothing else."""
    place = Node(short_dir, short_dir / "feedd")
    _script(place)
    yield place
    for process in place.processes():
        process.kill()


def _script(node: Node, *, stubborn: bool = False) -> None:
    node.feedd.write_text(_LISTENS.format(python=sys.executable, stubborn=stubborn))
    node.feedd.chmod(0o755)


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh", "task-prolog.sh", "feedd-slurm.conf"])
def test_scripts_are_bash(name: str) -> None:
    """Bash accepts each file, and the scripts are executable."""
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)
    assert name.endswith(".conf") or os.access(SCRIPTS / name, os.X_OK)


@pytest.mark.slow
def test_a_job_has_a_daemon_until_it_ends(node: Node) -> None:
    """The daemon outlives the Prolog, and tasks learn its address. The Epilog leaves nothing."""
    assert (node.run("prolog.sh"), node.code) == ("", 0)
    assert len(node.processes()) == 1
    address = f"export FEEDD_ADDRESS=unix://{node.home}/run/{JOB}/feedd.sock\n"
    assert node.run("task-prolog.sh") == address
    assert node.run("task-prolog.sh", environment={"FEEDD_ADDRESS": "unix:///mine"}) == ""
    assert (node.run("epilog.sh", job=JOB + 1), len(node.processes())) == ("", 1)  # another job of the node
    assert (node.run("epilog.sh"), node.code) == ("", 0)
    assert (node.processes(), node.files()) == ([], [])
    assert node.run("task-prolog.sh") == ""


@pytest.mark.slow
@pytest.mark.parametrize("port", ["", "17000"], ids=["off", "on"])
def test_daemons_of_a_job_know_each_other(node: Node, port: str) -> None:
    """With a port for peers, the nodes of the job are the members, at a port of the job; the Epilog leaves nothing."""
    (node.home / "scontrol").write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n')
    (node.home / "scontrol").chmod(0o755)
    node.peers_port = port
    assert node.run("prolog.sh", environment={"SLURM_JOB_NODELIST": "n[1-2]"}) == ""
    (daemon,) = node.processes()
    environment = {name: value for name, value in daemon.environ().items() if name.startswith("FEEDD_PEERS__")}
    members = node.home / "run" / f"{JOB}.members"
    if port:
        listen, peer_port = "FEEDD_PEERS__LISTEN", 17000 + JOB % 1000
        assert environment == {listen: f"0.0.0.0:{peer_port}", "FEEDD_PEERS__MEMBERS_FILE": str(members)}
        assert members.read_text() == f"n1:{peer_port}\nn2:{peer_port}\n"
    else:
        assert (environment, members.exists()) == ({}, False)
    node.run("epilog.sh")
    assert (node.processes(), node.files()) == ([], [])


@pytest.mark.slow
def test_a_daemon_that_ignores_sigterm_is_killed(node: Node) -> None:
    """The Epilog waits, then kills."""
    _script(node, stubborn=True)
    node.stop_timeout_s = 1
    node.run("prolog.sh")
    assert len(node.processes()) == 1
    node.run("epilog.sh")
    assert node.processes() == []
    assert (node.code, node.files()) == (0, [])


@pytest.mark.slow
def test_a_number_of_another_process_is_not_killed(node: Node) -> None:
    """A process that got the number of an ended daemon is left alone."""
    node.run("prolog.sh")
    (daemon,) = node.processes()
    daemon.kill()
    (node.home / "run" / f"{JOB}.pid").write_text(f"{os.getpid()}\n")
    node.run("epilog.sh")
    assert (node.code, node.files()) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["partition", "job", "program", "no file"])
def test_a_prolog_never_drains_a_node(node: Node, case: str) -> None:
    """Other partitions, odd job numbers, a missing program or no configuration: exit code 0 and no daemon."""
    environment = {"partition": {"SLURM_JOB_PARTITION": "cpu"}, "no file": {"FEEDD_SLURM_CONF": "/nowhere"}}.get(case)
    if case == "program":
        node.feedd.unlink()
    job = "../4711" if case == "job" else JOB
    for script in ("prolog.sh", "task-prolog.sh", "epilog.sh"):
        assert (node.run(script, environment=environment, job=job), node.code) == ("", 0)
    assert (node.processes(), node.files()) == ([], [])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_task_reads_through_the_daemon_of_its_job(node: Node, tmp_path: Path) -> None:
    """With the real daemon, a task reads all samples through the address of the TaskProlog."""
    (tmp_path / "0.tar").write_bytes(numbered(0, 30))
    node.feedd.write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m feedd "$@"\n')
    began_s = time.monotonic()
    node.run("prolog.sh")
    log = (node.home / "run" / f"{JOB}.log").read_text()
    assert time.monotonic() - began_s < 30, log
    address = node.run("task-prolog.sh").strip().removeprefix("export FEEDD_ADDRESS=")
    dataset = FeedDataset(f"file://{tmp_path}/", batch_size=10, fields={"cls": "int"}, address=address)
    assert sorted(label for batch in dataset for label in batch["cls"].tolist()) == list(range(30))
    del dataset
    node.run("epilog.sh")
    assert (node.processes(), node.files()) == ([], [])
