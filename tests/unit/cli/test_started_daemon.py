"""Commands without an address find the daemon that a job of this user started."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import TYPE_CHECKING

import pytest

from feedd.cli import serve
from feedd.cli.running import daemon_address, started_daemon
from feedd.cli.serve import CACHE_FILE, note_cache_dir, remove_launch_folder
from feedd.cli.top import _page_url
from feedd.config import Config
from feedd.errors import BadConfig, NotFound
from feedd.observe.recent_log import RecentLog

if TYPE_CHECKING:
    from pathlib import Path


def _socket(folder: Path, age_s: float) -> str:
    folder.mkdir(parents=True)
    path = folder / "feedd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(path))
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return f"unix://{path}"


def test_the_note_of_the_cache_follows_no_link(tmp_path: Path) -> None:
    """A link that another user put beside the socket is replaced, and the file that it leads to stays as it was."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / CACHE_FILE).symlink_to(tmp_path / "precious")
    config = Config.model_validate({"listen": [f"unix://{tmp_path}/feedd.sock"], "cache": {"dir": str(tmp_path / "c")}})
    for _ in range(2):
        note_cache_dir(config)
        assert (tmp_path / CACHE_FILE).read_text() == str(tmp_path / "c")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("why", ["", "error", "locked", "served", "foreign"])
def test_a_launch_leaves_nothing_but_a_log_with_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A daemon that ends well removes its launch's folder, unless it logged an error or a client uses the folder."""
    folder = tmp_path / "launch"
    folder.mkdir()
    config = Config.model_validate({"listen": [f"unix://{folder}/feedd.sock"], "cache": {"dir": str(tmp_path / "c")}})
    note_cache_dir(config)
    monkeypatch.setattr(serve, "RECENT", recent := RecentLog())
    with (folder / "lock").open("w") as lock, (folder / "feedd.log").open("w") as log:
        if why == "foreign":  # the log of another daemon
            (folder / "feedd.log").rename(folder / "former.log")
            (folder / "feedd.log").touch()
        monkeypatch.setattr(serve, "_STDERR", log.fileno())
        recent.note(None, "", {"event": "cache is limited", "level": "warning"})
        if why == "error":
            recent.note(None, "", {"event": "fell over", "level": "error"})
        if why == "locked":
            fcntl.flock(lock, fcntl.LOCK_EX)
        if why == "served":
            (folder / "feedd.sock").touch()
        remove_launch_folder(config)
    assert folder.exists() == bool(why)
    if why:
        assert {path.name for path in folder.iterdir()} >= {"lock", "feedd.log", CACHE_FILE}


def test_the_last_one_is_taken(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several daemons that jobs started, the newest; a named or a configured one goes before."""
    monkeypatch.setattr("tempfile.tempdir", str(short_dir / "none"))
    monkeypatch.delenv("FEEDD_ADDRESS", raising=False)
    home = short_dir / f"feedd-{os.geteuid()}"
    _socket(home / "a", 10)
    newest = _socket(home / "b", 1)
    (home / "c").mkdir()
    (home / "c" / "feedd.sock").write_text("no socket")
    environment = {"XDG_RUNTIME_DIR": str(short_dir)}
    assert started_daemon(environment) == newest
    assert started_daemon({}) is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    config = Config.model_validate({"listen": [f"unix://{short_dir}/own.sock"]})
    assert daemon_address(None, config) == newest
    assert daemon_address("unix:///named.sock", config) == "unix:///named.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.bind(str(short_dir / "own.sock"))
        assert daemon_address(None, config) == f"unix://{short_dir}/own.sock"


def test_folders_of_others_are_left_alone(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a folder is not followed: in a shared folder, anybody could have put it there."""
    monkeypatch.setattr("tempfile.tempdir", str(short_dir / "none"))
    _socket(short_dir / "elsewhere" / "a", 1)
    (short_dir / f"feedd-{os.geteuid()}").symlink_to(short_dir / "elsewhere")
    assert started_daemon({"XDG_RUNTIME_DIR": str(short_dir)}) is None


def test_the_pages_address_is_beside_the_socket(short_dir: Path) -> None:
    """It is read from the daemon's file; without one, the error says who may read it."""
    (short_dir / "feedd.sock.page").write_text("http://127.0.0.1:7071/token/\n")
    assert _page_url(f"unix://{short_dir}/feedd.sock") == "http://127.0.0.1:7071/token/"
    with pytest.raises(NotFound, match="expected the address of the web page"):
        _page_url(f"unix://{short_dir}/other.sock")
    with pytest.raises(BadConfig, match="only sockets have a file"):
        _page_url("127.0.0.1:7070")
