"""A machine that is not as it should be: one clear error at the one who can act, and a daemon that lives on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import AccessDenied, BadConfigError, CacheError, DaemonUnreachable, DaemonVersionError, FeedDataset
from tests.budget import PATIENT_S, later
from tests.e2e.shards import numbered
from tests.fakes import forks
from tests.fakes.nobody import let_permissions_bind
from tests.fakes.s3 import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1 << 20
PER_SHARD = 8
_TMPFS_MIB = 24
_NO_BYPASS = ("--set", "cache.bypass=0")


@contextmanager
def _disk(path: Path, *options: str) -> Iterator[Path]:
    """A small file system of its own at ``path``; skips where this user may not mount one."""
    path.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join((f"size={_TMPFS_MIB}m", "mode=0700", *options)), "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def disk(short_dir: Path) -> Iterator[Path]:
    """Where the first daemon keeps its cache: a disk of 24 MiB."""
    with _disk(short_dir / "d" / "cache") as path:
        yield path


def _put(s3: S3Server, shards: int) -> list[int]:
    """Upload shards of about 4 MiB each; return the labels of all samples."""
    for shard in range(shards):
        s3.put("data", f"train/{shard}.tar", numbered(shard, PER_SHARD, pad_bytes=MIB // 2))
    return [shard * 1000 + ordinal for shard in range(shards) for ordinal in range(PER_SHARD)]


def _read(address: str, **options: Any) -> list[int]:
    dataset = FeedDataset("s3://data/train/", **{"batch_size": 8, "fields": {"cls": "int"}, **options}, address=address)
    return [label for batch in dataset for label in batch["cls"].tolist()]


# ------------------------------------------------------------------ the disk


def test_data_larger_than_the_disk_streams_through(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Ten times 4 MiB pass a disk of 24 MiB twice, although the configured cache would hold them all."""
    labels = _put(s3, 10)
    daemon = daemons(settings=("cache.free_reserve=2MiB",))
    for _ in range(2):
        assert _read(daemon.address) == labels
    assert sum(file.stat().st_size for file in disk.rglob("*") if file.is_file()) <= _TMPFS_MIB * MIB
    daemon.wait_idle()


def test_a_disk_filled_by_somebody_else_ends_no_epoch(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Where nothing is left to evict on disk, shards come from memory, and the trainer notices nothing."""
    labels = _put(s3, 3)
    daemon = daemons(settings=("cache.free_reserve=2MiB",))
    foreign = disk / "somebody-elses"
    foreign.write_bytes(bytes(20 * MIB))
    assert _read(daemon.address) == labels
    foreign.unlink()
    assert _read(daemon.address) == labels
    daemon.wait_idle()


def test_a_disk_filled_by_somebody_else(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Without memory for that the trainer hears directory and sizes; with room again the same daemon serves."""
    labels = _put(s3, 3)
    daemon = daemons(settings=("cache.free_reserve=2MiB", "cache.bypass=0"))
    foreign = disk / "somebody-elses"
    foreign.write_bytes(bytes(20 * MIB))
    with pytest.raises(CacheError) as caught:
        _read(daemon.address)
    text = str(caught.value)
    for said in (str(disk), "reserve of 2MiB", "MiB free", "free disk space"):
        assert said in text, text
    assert "\n" not in text
    daemon.wait_idle()
    foreign.unlink()
    assert _read(daemon.address) == labels
    daemon.wait_idle()


def test_a_window_larger_than_the_cache(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Batches mixed from more shards than the cache holds are refused with sizes and the way out; less is served."""
    labels = _put(s3, 8)
    daemon = daemons(cache_size="16MiB", settings=("shuffle.window_shards=8",))
    with pytest.raises(CacheError) as caught:
        _read(daemon.address, batch_size=32, shuffle=True)
    text = str(caught.value)
    for said in ("shards of", "limit of 16MiB", "raise --cache-size", "shuffle window"):
        assert said in text, text
    daemon.wait_idle()
    assert _read(daemon.address) == labels
    daemon.wait_idle()


# ------------------------------------------------------------------ starting


def _warnings(daemon: Daemon) -> list[str]:
    return [line for line in daemon.log.read_text().splitlines() if '"warning"' in line and "cache" in line]


def _wait_for(daemon: Daemon, text: str) -> None:
    deadline = time.monotonic() + PATIENT_S
    while text not in daemon.log.read_text():
        assert time.monotonic() < deadline, daemon.log.read_text()[-3000:]
        time.sleep(0.1)


def test_a_disk_full_from_the_start(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A daemon on a full disk serves every sample from memory after one warning, and uses the disk once it has room."""
    labels = _put(s3, 3)
    foreign = disk / "somebody-elses"
    with foreign.open("wb") as file:
        file.write(bytes(_TMPFS_MIB * MIB - 4096))
    daemon = daemons(settings=("cache.free_reserve=2MiB",))
    assert daemon.healthy()
    assert _read(daemon.address) == labels
    (warning,) = _warnings(daemon)
    for said in (str(disk), "cache.bypass", "free disk space"):
        assert said in warning, warning
    foreign.unlink()
    _wait_for(daemon, '"state": "normal"')
    assert _read(daemon.address) == labels
    assert sum(file.stat().st_size for file in disk.rglob("*") if file.is_file()) > len(labels) * MIB // 2
    daemon.wait_idle()


def test_a_disk_read_only_from_the_start(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A daemon on a read-only disk serves every sample from memory, and uses the disk once it can be written."""
    labels = _put(s3, 2)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    daemon = daemons(settings=("cache.free_reserve=2MiB",))
    assert _read(daemon.address) == labels
    (warning,) = _warnings(daemon)
    assert "read-only" in warning, warning
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    _wait_for(daemon, '"state": "normal"')
    assert _read(daemon.address) == labels
    assert sum(file.stat().st_size for file in disk.rglob("*") if file.is_file()) > len(labels) * MIB // 2
    daemon.wait_idle()


def test_a_disk_full_of_our_own_entries(disk: Path, s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A disk that earlier runs filled with entries is opened as any other: room is made by eviction."""
    labels = _put(s3, 8)
    daemon = daemons(settings=("cache.free_reserve=0",))
    assert _read(daemon.address) == labels
    daemon.stop()
    (disk / "rest").write_bytes(bytes(os.statvfs(disk).f_bavail * 4096))
    assert os.statvfs(disk).f_bavail == 0
    daemon.start()
    assert _read(daemon.address) == labels
    assert not [line for line in _warnings(daemon) if "cannot be used" in line]
    daemon.wait_idle()


def test_without_bypass_the_refusal_names_it(short_dir: Path) -> None:
    """A full disk ends the start of a daemon without memory to fall back on; its hint names the option."""
    with _disk(short_dir / "full") as full:
        (full / "somebody-elses").write_bytes(bytes(_TMPFS_MIB * MIB - 4096))
        settings = ("--cache-dir", str(full), "--set", "cache.free_reserve=1MiB", *_NO_BYPASS)
        code, error = _refused(short_dir, *settings, hint="cache.bypass")
    assert code == 1
    assert str(full) in error


def _refused(home: Path, *flags: str, before: Callable[[], object] | None = None, hint: str = "") -> tuple[int, str]:
    """Start a daemon that cannot start; return its exit code and its error line."""
    settings = ["--workers", "1", "--set", "arena.size=16MiB", "--set", "cache.free_reserve=0", "--cache-size", "64MiB"]
    where = ["--listen", f"unix://{home}/x.sock", "--cache-dir", str(home / "x"), "--status", "off"]
    done = forks.run(["serve", *where, *settings, *flags], os.environ, before=before)
    error, *hints = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert error.startswith("feedd: error: "), done.stderr
    assert all(line.startswith("feedd: hint: ") for line in hints), done.stderr
    assert len(hints) == 1, done.stderr
    assert hint in hints[0], done.stderr
    return done.returncode, error


def test_a_cache_directory_that_cannot_be_one(short_dir: Path) -> None:
    """A file in its place, a file above it and a read-only disk end the start with one line that names it."""
    (short_dir / "file").write_text("not a directory")
    for path in (short_dir / "file", short_dir / "file" / "below"):
        code, error = _refused(short_dir, "--cache-dir", str(path))
        assert code == 1
        assert str(path) in error
    with _disk(short_dir / "ro", "ro") as read_only:
        code, error = _refused(short_dir, "--cache-dir", str(read_only / "cache"), *_NO_BYPASS)
        assert code == 1
        assert str(read_only / "cache") in error
        assert "read-only" in error


def test_a_cache_directory_without_permission(short_dir: Path) -> None:
    """A directory this user may not write ends the start with one line that names it."""
    (short_dir / "theirs").mkdir(mode=0o555)
    code, error = _refused(
        short_dir, "--cache-dir", str(short_dir / "theirs"), *_NO_BYPASS, before=let_permissions_bind
    )
    assert code == 1
    assert str(short_dir / "theirs") in error


def test_a_port_in_use(short_dir: Path) -> None:
    """A TCP address somebody else listens on ends the start with one line that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, error = _refused(short_dir, "--listen", address)
    assert code == 2
    assert address in error
    assert not (short_dir / "x.sock").exists()


# ------------------------------------------------------------------ a daemon that is not the right one


def test_no_daemon_at_the_address(short_dir: Path) -> None:
    """A socket that is not there, one nobody serves and a closed port are told at once, with address and way out."""
    stale = short_dir / "stale.sock"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(stale))
    with socket.create_server(("127.0.0.1", 0)) as was:
        closed = f"127.0.0.1:{was.getsockname()[1]}"
    for address in (f"unix://{short_dir}/none.sock", f"unix://{stale}", closed):
        began_s = time.monotonic()
        with pytest.raises(DaemonUnreachable) as caught:
            _read(address, open_timeout_s=2 * PATIENT_S)
        assert time.monotonic() - began_s < PATIENT_S  # far below its time-out: there is nothing to wait for
        assert address in str(caught.value)
        assert "feedd serve" in caught.value.hint


def test_somebody_who_never_answers(short_dir: Path) -> None:
    """A listener that accepts and says nothing is told when ``open_timeout_s`` is over, with that name."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{short_dir}/deaf.sock")
        deaf.listen(8)
        with pytest.raises(DaemonUnreachable) as caught:
            _read(f"unix://{short_dir}/deaf.sock", open_timeout_s=1.0)
    assert f"unix://{short_dir}/deaf.sock" in str(caught.value)
    assert "open_timeout_s" in str(caught.value)


def test_a_client_of_another_major_version(
    s3: S3Server, daemons: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client newer than the daemon hears both versions in one line; the daemon serves others as before."""
    labels = _put(s3, 1)
    daemon = daemons()
    with monkeypatch.context() as newer:
        newer.setattr("feedd_client.opener.PROTOCOL_MAJOR", 2)
        with pytest.raises(DaemonVersionError) as caught:
            _read(daemon.address)
    text = str(caught.value)
    assert "1." in text, text
    assert "2." in text, text
    assert caught.value.hint
    assert "\n" not in text
    assert _read(daemon.address) == labels
    daemon.wait_idle()


# ------------------------------------------------------------------ the store


def test_a_bucket_in_another_region(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A store that says where the bucket is makes an error that names URL, option and region."""
    _put(s3, 1)
    s3.script("data", "", op="LIST", always=faults.moved("eu-central-1"))
    daemon = daemons(settings=("fetch.attempts=2",))
    with pytest.raises(BadConfigError) as caught:
        _read(daemon.address)
    assert "s3://data/train/" in str(caught.value)
    assert "region = 'eu-central-1'" in caught.value.hint
    daemon.wait_idle()


def test_credentials_that_ran_out(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Credentials that expire and are not renewed are told as that, with the object; after renewal it goes on."""
    labels = _put(s3, 1)
    s3.script("data", "train/0.tar", always=faults.expired_token())
    daemon = daemons(settings=("fetch.attempts=2",))
    with pytest.raises(AccessDenied) as caught:
        _read(daemon.address)
    assert "s3://data/train/0.tar" in str(caught.value)
    assert "renew" in caught.value.hint
    daemon.wait_idle()
    s3.calm()
    assert _read(daemon.address) == labels
    daemon.wait_idle()


# ------------------------------------------------------------------ Ctrl-C

_TRAINER = """
import sys, time
from torch.utils.data import DataLoader
from feedd_client import DeviceLoader, FeedDataset
address, how, think_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
dataset = FeedDataset("s3://data/train/", batch_size=2, fields={"cls": "int"}, address=address)
batches = {
    "plain": dataset,
    "device": DeviceLoader(dataset, device="cpu"),
    "workers": DataLoader(dataset, batch_size=None, num_workers=2),
}[how]
print("open", flush=True)
for batch in batches:
    print("got", flush=True)
    time.sleep(think_s)
"""


@pytest.mark.parametrize(
    ("how", "think_s"), [later("plain", 60.0), ("plain", 0.0), later("device", 0.0), ("workers", 60.0)], ids=str
)
def test_ctrl_c_in_training(s3: S3Server, daemons: Callable[..., Daemon], how: str, think_s: float) -> None:
    """Ctrl-C while the trainer computes, or waits for data that does not come, ends it by KeyboardInterrupt at once."""
    _put(s3, 2)
    if not think_s:
        s3.script("data", "train/1.tar", always=faults.hang())
    daemon = daemons(settings=("fetch.read_timeout=10m",))
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, daemon.address, how, str(think_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # as a terminal does: the signal goes to the whole group, workers included
    )
    try:
        assert trainer.stdout is not None
        for line in (b"open\n", *[b"got\n"] * (1 if think_s else PER_SHARD // 2)):
            assert trainer.stdout.readline() == line
        if not think_s:
            time.sleep(0.3)  # until it waits for the next batch; were it earlier, the test would still hold
        os.killpg(trainer.pid, signal.SIGINT)
        # Torch waits 5 s for a worker that does not end: one of some hundred interrupts leaves one.
        _, errors = trainer.communicate(timeout=15 + 2 * 5)
    finally:
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)
            trainer.communicate()
    assert trainer.returncode == -signal.SIGINT, errors.decode()[-3000:]
    assert errors.decode().strip().splitlines()[-1].startswith("KeyboardInterrupt"), errors.decode()[-3000:]
    daemon.wait_idle()
