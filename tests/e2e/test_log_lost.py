"""Standard error of a daemon that cannot be written: it starts, serves and stops, and counts what it could not say."""

from __future__ import annotations

import contextlib
import os
import pty
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import FeedDataset
from tests.e2e.shards import numbered, tar
from tests.fakes.disks import small_tmpfs
from tests.fakes.plugins import install_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def _stderr_to(path: str, flags: int = os.O_WRONLY) -> None:
    """Replace this process's standard output and error."""
    fd = os.open(path, flags | os.O_NOCTTY)
    for standard in (1, 2):
        os.dup2(fd, standard)
    os.close(fd)


def _fill(pipe: str) -> None:
    """Replace this process's standard error by a pipe that is full."""
    _stderr_to(pipe)
    os.set_blocking(2, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, bytes(4096))
    os.set_blocking(2, True)


def _no_descriptors() -> None:
    """Close this process's standard descriptors."""
    for fd in range(3):
        os.close(fd)


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, f"expected that {what}"
        time.sleep(0.05)


def _read(daemon: Daemon) -> list[int]:
    dataset = FeedDataset("s3://data/train/", batch_size=4, fields={"cls": "int"}, address=daemon.address)
    return [label for batch in dataset for label in batch["cls"].tolist()]


@pytest.fixture
def pipe(short_dir: Path) -> Iterator[tuple[str, int]]:
    """A pipe's path, and its end to read from."""
    path = str(short_dir / "pipe")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    with contextlib.suppress(OSError):
        os.close(reader)


def _check(daemon: Daemon, s3: S3Server, *, loses: bool = True) -> None:
    """The daemon serves two datasets, has counted its losses, and ends as asked."""
    s3.put("data", "train/0.tar", numbered(0, 8))
    for _ in range(2):
        assert _read(daemon) == list(range(8))
    _wait_for(lambda: daemon.metrics()["feedd_log_dropped_total"] > 0 or not loses, "losses were counted")
    daemon.wait_idle()
    assert daemon.stop() == 0


def test_a_full_disk_at_the_start(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """With each write refused for want of space the daemon starts, serves and stops."""
    _check(daemons(before=partial(_stderr_to, "/dev/full")), s3)


def test_closed_descriptors(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A daemon that is started without standard descriptors serves, and never takes a file of its own for them."""
    daemon = daemons(before=_no_descriptors)
    assert daemon.process is not None
    folder = Path(f"/proc/{daemon.process.pid}/fd")
    assert {str((folder / str(fd)).readlink()) for fd in range(3)} == {"/dev/null"}
    _check(daemon, s3, loses=False)


def test_a_terminal_that_is_closed(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """After the terminal has gone, opens work as before."""
    reader, writer = pty.openpty()
    daemon = daemons(before=partial(_stderr_to, os.ttyname(writer), os.O_RDWR))
    os.close(writer)
    os.close(reader)
    _check(daemon, s3)


def test_a_reader_that_is_gone(s3: S3Server, daemons: Callable[..., Daemon], pipe: tuple[str, int]) -> None:
    """After the process that read the log has ended, opens work as before."""
    path, reader = pipe
    daemon = daemons(before=partial(_stderr_to, path))
    os.close(reader)
    _check(daemon, s3)


def test_a_pipe_that_no_process_reads(s3: S3Server, daemons: Callable[..., Daemon], pipe: tuple[str, int]) -> None:
    """A full pipe stops neither the start nor an open nor the end."""
    _check(daemons(before=partial(_fill, pipe[0])), s3)


def test_lanes_of_a_node(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """The supervisor of a node and its daemons share the rule."""
    _check(daemons(flags=("--lanes", "2"), before=partial(_stderr_to, "/dev/full")), s3)


@pytest.fixture
def full(short_dir: Path) -> Iterator[Path]:
    """The disk of the first daemon's log, which is full."""
    with small_tmpfs(short_dir / "d", "size=64k") as disk:
        with contextlib.suppress(OSError), (disk / "foreign").open("wb", buffering=0) as foreign:
            while True:
                foreign.write(bytes(4096))
        yield disk


def _elsewhere(folder: Path) -> tuple[str, ...]:
    return ("--cache-dir", str(folder / "cache"), "--listen", f"unix://{folder}/feedd.sock")


def test_a_disk_that_has_room_again(full: Path, daemons: Callable[..., Daemon], short_dir: Path) -> None:
    """Once the log's disk has room, the daemon reports how many lines are missing, although it has no other news."""
    daemon = daemons(flags=_elsewhere(short_dir))
    _wait_for(lambda: daemon.metrics()["feedd_log_dropped_total"] > 0, "losses were counted")
    assert not daemon.log.read_text()
    (full / "foreign").unlink()
    _wait_for(lambda: "log lines were dropped" in daemon.log.read_text(), "the loss was reported")
    assert daemon.stop() == 0


def test_a_codec_that_prints(
    s3: S3Server, full: Path, daemons: Callable[..., Daemon], short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed codec that prints in a decode worker spoils no sample."""
    site = install_plugins(short_dir / "site")
    code = (site / "feedd_fake_plugins.py").read_text()
    printing = code.replace(
        "        out[...]", "        import sys; print(1, file=sys.stderr, flush=True)\n        out[...]"
    )
    assert printing != code
    (site / "feedd_fake_plugins.py").write_text(printing)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    s3.put("data", "train/0.tar", tar([(f"{number}", {"bin": bytes([number, 7])}) for number in range(8)]))
    daemons(forked=False, flags=_elsewhere(short_dir))
    fields: dict[str, Any] = {"bin": {"decode": "first_bytes", "count": 2}}
    dataset = FeedDataset("s3://data/train/", batch_size=4, fields=fields, address=f"unix://{short_dir}/feedd.sock")
    assert [row for batch in dataset for row in batch["bin"].tolist()] == [[number, 7] for number in range(8)]
    assert (full / "feedd.log").stat().st_size == 0
