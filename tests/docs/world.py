"""What the blocks of the documents run against: an S3 server, a daemon, and the plug-in that a guide shows."""

from __future__ import annotations

import json
import os
import select
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.docs.blocks import blocks
from tests.docs.data import BUCKET, WORDS
from tests.e2e.daemon import Daemon, free_port
from tests.fakes.forks import Module
from tests.fakes.s3.server import S3Server
from tests.fakes.texts import word_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.docs.execute import Job

_LIMIT_S = 90.0


@dataclass(frozen=True)
class World:
    """A store with a daemon.

    Attributes:
        server: the store.
        daemon: the daemon.
        programs: runs jobs, see ``tests.docs.execute.serve``.
    """

    server: S3Server
    daemon: Daemon
    programs: Module

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs that talk to both: those of the only rank of a launch, too."""
        return {
            "AWS_ENDPOINT_URL": self.server.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "FEEDD_ADDRESS": self.daemon.address,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }

    def run(self, job: Job, place: str) -> dict[str, Any]:
        """Run a program in a process of its own; return its record.

        Args:
            job: what to run, in a folder.
            place: where it stands, for messages.
        """
        file = Path(job.folder) / "job.json"
        file.write_text(job.text())
        self.programs.stdin.write(f"{file}\n".encode())
        self.programs.stdin.flush()
        answered, _, _ = select.select([self.programs.stdout], [], [], _LIMIT_S)
        assert answered, f"{place}: expected an end within {_LIMIT_S:g} s"
        assert self.programs.stdout.readline() == b"done\n", place
        log = file.with_name("log.txt")
        self.server.hang_up()  # the connections are descriptors of this process
        record: dict[str, Any] = json.loads(Path(job.record).read_text())
        assert not record["error"], f"{place}: {record['error']}\n{log.read_text()[-2000:]}"
        return record


def _install_plugin(folder: Path) -> None:
    """Install the plug-in of the guide as pip would: its code, and the entry points that its pyproject.toml names."""
    page = [block for block in blocks() if block.path.name == "own-transforms.md"]
    (project,) = [tomllib.loads(block.body)["project"] for block in page if block.language == "toml"]
    (code,) = [block.body for block in page if block.detail == "plug-in"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"].items()
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in found.items()) for group, found in points
    )
    (info / "entry_points.txt").write_text(text)
    (folder / "feedd_depth.py").write_text(code)


def look_for_plugins() -> None:
    """Let a forked daemon find what lies in its PYTHONPATH."""
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)


@contextmanager
def new_world(content: Iterable[tuple[str, bytes]]) -> Iterator[World]:
    """Start a daemon over a bucket of these objects."""
    with TemporaryDirectory(prefix="fd-", dir="/tmp") as home, S3Server() as server:
        for key, data in content:
            server.put(BUCKET, key, data)
        folder = Path(home)
        _install_plugin(folder / "site")
        word_tokenizer(folder / "tokenizers" / "gpt2.json", WORDS)
        settings = (f"decode.tokenizers={folder / 'tokenizers'}",)
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder / "site"), path)))
        try:
            daemon = Daemon(folder, server.url, settings=settings, before=look_for_plugins).start()
        finally:
            del os.environ["PYTHONPATH"]
            if path is not None:
                os.environ["PYTHONPATH"] = path
        try:
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several would spin for work that one does at once
            with Module("tests.docs.execute", [], one_thread, folder / "programs.txt") as programs:
                yield World(server, daemon, programs)
            daemon.leave()
        finally:
            daemon.end()
