"""A daemon for this process tree: found or started once, shared, gone with the last process however it dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
import pytest

from feedd_client import DaemonStartError, FeedDataset, autostart
from feedd_client.autostart import base_dir, launch_key, resolve_address
from feedd_client.executable import find_executable
from tests.budget import PATIENT_S, later
from tests.fakes.feed_process import environment
from tests.fakes.forks import Module
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
_TORCHRUN = {"TORCHELASTIC_RUN_ID": "one", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def _fake_package(folder: Path) -> Path:
    package = folder / "site" / "feedd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("from tests.unit.client.fakefeedd import main\nmain()\n")
    return package.parent


def _until(found: Callable[[], _T]) -> _T:
    """Wait until something is there, and return it."""
    deadline_s = time.monotonic() + PATIENT_S
    while not (value := found()):
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.02)
    return value


class _Trainers:
    """Processes that train without an address, and what they start."""

    def __init__(self, home: Path) -> None:
        self.site = _fake_package(home)
        self._home = home
        self._log = home / "trainers.log"
        self._started: list[Module] = []

    def start(self, **more: str) -> Module:
        """Start one, with more in its environment."""
        env = environment()
        env.update({"XDG_RUNTIME_DIR": str(self._home), "PYTHONPATH": f"{self.site}:{env['PYTHONPATH']}", **more})
        trainer = Module("tests.unit.client.autostart_probe", [str(self._home)], env, self._log)
        self._started.append(trainer)
        return trainer

    def say(self, trainer: Module) -> list[str]:
        """Return the words of a trainer's next line."""
        return trainer.stdout.readline().decode().split()

    def errors(self) -> str:
        """Return what all of them wrote to their standard error."""
        return self._log.read_text()

    def daemons(self) -> list[psutil.Process]:
        """Return the daemons that run, stopped ones included."""
        pids = [int(pid) for starts in self._home.rglob("starts") for pid in starts.read_text().split()]
        found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        return [
            one for one in found if one.status() != psutil.STATUS_ZOMBIE and str(self._home) in str(command_of(one))
        ]

    def end(self) -> None:
        """Kill all of them."""
        for trainer in self._started:
            with trainer:
                pass
        for daemon in self.daemons():
            with contextlib.suppress(psutil.NoSuchProcess):
                daemon.kill()


@pytest.fixture
def trainers(short_dir: Path) -> Iterator[_Trainers]:
    """Trainers, gone with the test together with their daemons, however the test ends."""
    found = _Trainers(short_dir)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_ranks_share_one_daemon_that_ends_with_them(trainers: _Trainers) -> None:
    """Two ranks of one launch start exactly one daemon; it survives the first kill -9 and ends after the second."""
    ranks = [trainers.start(**_TORCHRUN) for _ in range(2)]
    try:
        said = [trainers.say(rank) for rank in ranks]
        assert said[0] == said[1]
        assert said[0][0] == "3"
        home = Path(said[0][1].removeprefix("unix://")).parent
        assert home.parent.stat().st_mode & 0o777 == 0o700
        (pid,) = (home / "starts").read_text().split()
        ranks[0].kill()
        ranks[0].wait()
        time.sleep(0.3)
        assert not (home / "ended").exists()
        ranks[1].kill()
        _until((home / "ended").exists)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    (line,) = [line for line in trainers.errors().splitlines() if "started a feedd daemon for this job" in line]
    assert f"deleted (set FEEDD_CACHE__DIR to keep it). Cache: /cache/of/{pid}. Log: {home}/feedd.log" in line
    assert int(pid) > 0


def test_a_removed_lock_is_locked_again(tmp_path: Path) -> None:
    """A client that waits for a lock whose folder is removed meanwhile makes both again, and excludes later clients."""
    path, began, ends = tmp_path / "launch" / "lock", threading.Event(), threading.Event()

    def wait_for_it() -> None:
        began.set()
        with autostart._locked(path, makes_folder=True):
            locked.set()
            ends.wait(PATIENT_S)

    locked = threading.Event()
    waiter = threading.Thread(target=wait_for_it)
    with autostart._locked(path, makes_folder=True):
        waiter.start()
        assert began.wait(PATIENT_S)
        _until(lambda: "FLOCK" in _waited_locks(path.stat().st_ino))
        shutil.rmtree(path.parent)
    try:
        assert locked.wait(PATIENT_S)
        with path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        ends.set()
        waiter.join()


def _waited_locks(inode: int) -> str:
    """Return the lines of the kernel's list that tell of a wait for a file's lock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return "".join(line for line in lines if "->" in line and f":{inode} " in line)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_what_a_test_leaves_is_ended(short_dir: Path) -> None:
    """A daemon that is stopped ends with its trainer, although it could never notice that the trainer is gone."""
    trainers = _Trainers(short_dir)
    try:
        trainers.start(FAKE_FEEDD_WEDGES="1")
        stopped = _until(lambda: [one for one in trainers.daemons() if one.status() == psutil.STATUS_STOPPED])
    finally:
        trainers.end()
    assert len(stopped) == 1
    _until(lambda: not trainers.daemons())


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_a_daemon_of_this_tree_that_hangs_is_killed_and_replaced(trainers: _Trainers) -> None:
    """A daemon that was started for the trainer and stops answering is killed; another one serves the epoch."""
    trainer = trainers.start(FAKE_FEEDD_WEDGES="1", PROBE_STALL_S="1")
    try:
        count, address = trainers.say(trainer)
        assert count == "40"
        home = Path(address.removeprefix("unix://")).parent
        hung, fresh = (home / "starts").read_text().split()
        assert not Path(f"/proc/{hung}/ns").exists() or "Z" in Path(f"/proc/{hung}/stat").read_text()
        assert Path(f"/proc/{fresh}").exists()
    finally:
        trainer.kill()
        trainer.wait()
    assert "killing the daemon of this process tree" in trainers.errors()
    _until((home / "ended").exists)


def test_a_daemon_that_does_not_start_is_told_with_its_last_words(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its log is in the error."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    monkeypatch.setenv("PYTHONPATH", f"{_fake_package(short_dir)}:{environment()['PYTHONPATH']}")
    monkeypatch.setenv("FAKE_FEEDD_FAILS", "1")
    monkeypatch.chdir(short_dir)
    with pytest.raises(DaemonStartError, match="expected a cache directory, got nothing"):
        iter(FeedDataset("s3://b/", batch_size=4))


def _executable(folder: Path) -> Path:
    """Write a command feedd of another environment, which notes what module path it was given."""
    path = folder / "bin" / "feedd"
    path.parent.mkdir()
    own = environment()["PYTHONPATH"]
    path.write_text(
        f'#!/bin/sh\necho "got:$PYTHONPATH:$FEEDD_EXECUTABLE" >> {folder}/via\n'
        f'PYTHONPATH={own} exec {sys.executable} -m tests.unit.client.fakefeedd "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("way", ["variable", later("path")])
def test_a_daemon_of_another_environment_is_started(trainers: _Trainers, short_dir: Path, way: str) -> None:
    """FEEDD_EXECUTABLE outranks the package; without both, feedd on PATH serves. Neither gets this module path."""
    executable = _executable(short_dir)
    if way == "variable":
        more = {"FEEDD_EXECUTABLE": str(executable)}
    else:
        more = {"PROBE_HIDES_FEEDD": "1", "PATH": f"{executable.parent}{os.pathsep}{os.environ['PATH']}"}
    trainer = trainers.start(**more)
    try:
        count, address = trainers.say(trainer)
    finally:
        trainer.kill()
        trainer.wait()
    assert count == "3"
    assert (short_dir / "via").read_text() == "got::\n"
    assert f"Started with {executable}." in trainers.errors()
    _until((Path(address.removeprefix("unix://")).parent / "ended").exists)


def test_without_a_program_to_start_the_ways_out_are_named(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where feedd is neither installed nor on PATH the error says: install it, name a command, or give an address."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    monkeypatch.setenv("PATH", str(short_dir))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DaemonStartError) as caught:
        iter(FeedDataset("s3://b/", batch_size=4))
    for way in ("pip install feedd", "FEEDD_EXECUTABLE", "FEEDD_ADDRESS"):
        assert way in caught.value.hint


def test_which_program_starts_a_daemon(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable, the package and the command on PATH are asked in this order; a folder called feedd is none."""
    executable = _executable(short_dir)
    env = {"PATH": str(executable.parent)}
    installed = (sys.executable, "-P", "-m", "feedd")
    assert find_executable({**env, "FEEDD_EXECUTABLE": "feedd"}, "").command == (str(executable),)
    assert find_executable(env, "").command == installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None))
    assert find_executable(env, "").command == (str(executable),)
    found = find_executable({**env, "FEEDD_EXECUTABLE": str(executable)}, "")
    assert found.environment({"PYTHONPATH": "/x", "PYTHONHOME": "/x", "HOME": "/x"}) == {"HOME": "/x"}
    executable.chmod(0o644)
    with pytest.raises(DaemonStartError, match="expected FEEDD_EXECUTABLE to name an executable file"):
        find_executable({"FEEDD_EXECUTABLE": str(executable)}, "")


def test_a_program_that_cannot_run_is_named(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose interpreter is gone, as in a moved environment, is an error that names the command."""
    executable = _executable(short_dir)
    executable.write_text(f"#!{short_dir}/no-such-python\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    monkeypatch.setenv("FEEDD_EXECUTABLE", str(executable))
    with pytest.raises(DaemonStartError, match="No such file") as caught:
        iter(FeedDataset("s3://b/", batch_size=4))
    assert caught.value.object == str(executable)
    assert f"{executable} --version" in caught.value.hint


def test_a_named_daemon_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address in the argument or the environment is taken as it is; the argument counts more."""
    monkeypatch.setenv("FEEDD_ADDRESS", "unix:///run/elsewhere.sock")
    assert resolve_address(None) == "unix:///run/elsewhere.sock"
    assert resolve_address("host:7070") == "host:7070"


def test_a_daemon_at_the_default_address_is_waited_for(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has answered, no other daemon is started while it restarts, also by child processes."""
    path = short_dir / "feedd.sock"
    monkeypatch.setattr(autostart, "DEFAULT_ADDRESS", f"unix://{path}")
    monkeypatch.setattr(autostart, "_ephemeral", lambda *_: "started")
    monkeypatch.setenv(autostart.ADDRESS_VARIABLE, "")
    assert autostart.resolve_address(None) == "started"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert autostart.resolve_address(None) == f"unix://{path}"
    assert autostart.resolve_address(None) == f"unix://{path}"
    assert os.environ[autostart.ADDRESS_VARIABLE] == f"unix://{path}"


def test_launches_have_names_of_their_own() -> None:
    """Ranks of one launch agree on a name that differs from every other launch's; a lone process has its own."""
    launches = [
        _TORCHRUN,
        {**_TORCHRUN, "MASTER_PORT": "29501"},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"},
        {"SLURM_JOB_ID": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"},
        {},
    ]
    names = [launch_key(env, 1) for env in launches]
    assert len(set(names)) == len(names)
    assert launch_key({**launches[2], "SLURM_PROCID": "5"}, 99) == names[2]


def test_a_directory_of_somebody_else_is_not_trusted(short_dir: Path) -> None:
    """A directory others can write to is refused."""
    env = {"XDG_RUNTIME_DIR": str(short_dir)}
    path = base_dir(env)
    path.chmod(0o777)
    with pytest.raises(DaemonStartError, match="of this user only"):
        base_dir(env)
    assert os.getuid() == path.stat().st_uid


@pytest.mark.parametrize("runtime", ["none", "long", "good"])
@pytest.mark.parametrize("tmp", ["none", "long", "good"])
@pytest.mark.parametrize("last", ["none", "good"])
def test_the_directory_lies_where_a_socket_can(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, tmp: str, last: str
) -> None:
    """It is in the first of three folders that is writable and short; without one, the error names the variables."""
    folders = {}
    for name, kind in (("runtime", runtime), ("tmp", tmp), ("last", last)):
        folders[name] = short_dir / (name + "x" * (80 if kind == "long" else 0))
        if kind != "none":
            folders[name].mkdir()
    monkeypatch.setattr(autostart, "_SHORT", str(folders["last"]))

    def temporary() -> str:
        if tmp == "none":
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
        return str(folders["tmp"])

    monkeypatch.setattr(tempfile, "gettempdir", temporary)
    env = {"XDG_RUNTIME_DIR": str(folders["runtime"])}
    kinds = {"runtime": runtime, "tmp": tmp, "last": last}
    right = next((name for name, kind in kinds.items() if kind == "good"), None)
    if right is None:
        with pytest.raises(DaemonStartError, match=r"writable folder.*TMPDIR.*XDG_RUNTIME_DIR.*FEEDD_ADDRESS"):
            base_dir(env)
    else:
        assert base_dir(env).parent == folders[right]
