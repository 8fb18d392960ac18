"""A node that several users share: a daemon of its own user, folders that users may and may not read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.budget import PATIENT_S
from tests.security.users import DAEMON_UID, ROOT, command_of, environment, run_as, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = PATIENT_S
NEEDS_USERS = pytest.mark.skipif(bool(why_not()), reason=f"needs processes of other users: {why_not()}")
READ = """
import sys
from feedd_client import FeedDataset, FeedError
try:
    rows = [row for batch in FeedDataset(sys.argv[2], batch_size=4, fields={"text": "str"}, address=sys.argv[1],
            reconnect_timeout_s=5, open_timeout_s=60, **eval(sys.argv[3] if len(sys.argv) > 3 else "{}"))
            for row in batch["text"]]
except FeedError as error:
    print("refused", type(error).__name__, error)
else:
    print("read", len(rows), rows[:2])
"""
"""Reads a dataset of lines: ADDRESS URL [OPTIONS]."""
CALLS = """
import json, sys, grpc
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import AdminStub, FeedStub
from feedd.serve.tickets import ticket_of, TICKET_HEADER
channel = grpc.insecure_channel(sys.argv[1].replace("unix://", "unix:"))
admin, feed = AdminStub(channel), FeedStub(channel)
said = []
with ticket_of(sys.argv[1].removeprefix("unix://") + ".arena") as ticket:
    headers = ((TICKET_HEADER, ticket),) if ticket and sys.argv[3] == "True" else ()
    for expression in json.loads(sys.argv[2]):
        try:
            said.append(f"answered {eval(expression)}")
        except grpc.RpcError as error:
            said.append(f"{error.code().name} {error.details()}")
print(json.dumps(said))
"""
"""Calls the daemon: ADDRESS EXPRESSIONS WITH_TICKET."""


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a new folder that everybody can enter."""
    with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@dataclass(slots=True)
class Node:
    """The daemon of a shared node; a context manager.

    Attributes:
        home: folder of the socket, the cache and the data; everybody may enter it.
        settings: options of the daemon, as ``--set`` takes them.
        mode: permissions of its sockets.
        status: where it serves the status page.
        listen: where it listens besides its socket.
        limit_files: its limit of open files; 0: as here.
    """

    home: Path
    settings: tuple[str, ...] = ()
    mode: str = "0666"
    listen: tuple[str, ...] = ()
    limit_files: int = 0
    status: str = "off"
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Path of its socket."""
        return self.home / "run" / "feedd.sock"

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"unix://{self.socket}"

    @property
    def public(self) -> Path:
        """A folder of lines that everybody may read."""
        return self.home / "public"

    @property
    def secret(self) -> Path:
        """A file that only the daemon's user may read."""
        return self.home / "secret" / "token.txt"

    @property
    def log(self) -> Path:
        """The daemon's standard error."""
        return self.home / "feedd.log"

    def __enter__(self) -> Self:
        self.home.chmod(0o755)
        for name, mode in (("run", 0o755), ("cache", 0o700), ("public", 0o755), ("secret", 0o700)):
            folder = self.home / name
            folder.mkdir()
            folder.chmod(mode)
            os.chown(folder, DAEMON_UID, DAEMON_UID)
        (self.public / "lines.txt").write_text("".join(f"line {number}\n" for number in range(16)))
        self.secret.write_text("the daemon's token\n" * 4)
        self.secret.chmod(0o600)
        os.chown(self.secret, DAEMON_UID, DAEMON_UID)
        (self.public / "link.txt").symlink_to(self.secret)
        (self.public / "folder").symlink_to(self.secret.parent)
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENT_S)
            process.kill()
            process.wait()

    def _start(self) -> None:
        arguments = ["serve", "--listen", self.address, "--cache-dir", str(self.home / "cache" / "feedd")]
        arguments += ["--cache-size", "64MiB", "--status", self.status, "--workers", "1", "--log", "json"]
        rules = f"security.allow_urls=s3://public/,file://{self.public}"
        for setting in (f"security.socket_mode={self.mode}", rules, "cache.free_reserve=1MiB", *self.settings):
            arguments += ["--set", setting]
        command = command_of(DAEMON_UID, [sys.executable, "-m", "feedd", *arguments])
        for address in self.listen:
            command += ["--listen", address]
        if self.limit_files:
            command = ["prlimit", f"--nofile={self.limit_files}:{self.limit_files}", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment(self.env), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + _START_S
        while '"serving"' not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self.log.read_text()[-3000:]
            time.sleep(0.05)

    @property
    def alive(self) -> bool:
        """Whether the daemon runs."""
        return self.process is not None and self.process.poll() is None

    def read(self, uid: int, url: str, options: str = "{}") -> str:
        """Read lines as a user; return what the client prints."""
        return run_as(uid, READ, self.address, url, options)

    def calls(self, uid: int, expressions: list[str], *, ticket: bool = True) -> list[str]:
        """Send calls as a user; return for each ``answered ...``, or the code and text of the refusal."""
        said = run_as(uid, CALLS, self.address, json.dumps(expressions), str(ticket))
        found: list[str] = json.loads(said.splitlines()[-1])
        return found

    def command(self, uid: int, *arguments: str) -> str:
        """Run a ``feedd`` command as a user."""
        code = "import sys; from feedd.cli.app import main; sys.argv[0] = 'feedd'; main()"
        return run_as(uid, code, *arguments)

    def sessions(self) -> list[dict[str, object]]:
        """Return all sessions, as an administrator sees them."""
        text = self.command(DAEMON_UID, "sessions", "ls", "--json", "--address", self.address)
        found: list[dict[str, object]] = json.loads(text)
        return found
