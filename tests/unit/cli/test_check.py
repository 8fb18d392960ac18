"""``feedd check``: every value with its origin, and an honest answer about the machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout, files
from feedd.cache.lock import DirectoryLock
from feedd.cli.check import Finding, Verdict, examine, lacks_huge_pages
from feedd.config import load, options
from feedd.config import machine_defaults as config_machine
from feedd.config.types import lane_address
from feedd.units import MIB
from feedd.values import ObjectRef
from tests.fakes.nobody import as_nobody

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Feedd, Outcome


@pytest.fixture
def place(short_dir: Path) -> Path:
    """A directory where a daemon could live."""
    return short_dir


def _flags(place: Path, **more: str) -> dict[str, tuple[object, str]]:
    values = {
        "listen": [f"unix://{place}/f.sock"],
        "status": "off",
        "cache.dir": str(place / "cache"),
        "cache.size": "16MiB",
        "cache.free_reserve": "0",
        "arena.size": "1MiB",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return {name: (value, "flag") for name, value in values.items()}


def _examine(place: Path, **more: str) -> dict[str, Finding]:
    return {finding.question: finding for finding in examine(load(_flags(place, **more), {}).config)}


def _check(feedd: Feedd, place: Path, *more: str) -> Outcome:
    plain = ("--listen", f"unix://{place}/f.sock", "--cache-dir", str(place / "cache"), "--cache-size", "16MiB")
    small = ("--set", "cache.free_reserve=0", "--set", "arena.size=1MiB")
    return feedd("check", "--status", "off", *plain, *small, *more)


def test_every_option_is_shown_with_its_origin(feedd: Feedd, place: Path) -> None:
    """The table names each option, its value and where it came from."""
    outcome = _check(feedd, place)
    assert outcome.code == 0, outcome
    rows = {line.split("│")[1].strip(): line for line in outcome.out.splitlines() if line.startswith("│")}
    assert {option.name for option in options() if option.env} <= set(rows)
    assert "16MiB" in rows["cache.size"]
    assert "flag --cache-size" in rows["cache.size"]
    assert "flag --set" in rows["arena.size"]
    assert "default" in rows["fetch.part_size"]


def test_missing_credentials_are_told_and_not_fatal(feedd: Feedd, place: Path) -> None:
    """Without credentials the machine can still serve local and public data."""
    outcome = _check(feedd, place)
    assert outcome.code == 0
    assert "there are no credentials" in outcome.out


def test_credentials_are_found_but_never_shown(feedd: Feedd, place: Path, aws_credentials: None) -> None:
    """Where they came from is told, what they are is not."""
    outcome = _check(feedd, place, "--set", "s3.public.anonymous=true")
    assert "found by env" in outcome.out
    assert "requests are anonymous" in outcome.out
    assert "test-access-key" not in outcome.out
    assert "test-secret-key" not in outcome.out


def test_a_machine_that_cannot_serve_is_exit_code_1(feedd: Feedd, place: Path) -> None:
    """One thing that cannot work is enough."""
    outcome = _check(feedd, place, "--set", "arena.size=900TiB")
    assert outcome.code == 1
    assert "cannot serve" in outcome.out


def test_all_is_well_on_a_good_machine(place: Path) -> None:
    """Nothing is in the way of a small daemon in an empty directory, and asking leaves nothing behind."""
    findings = _examine(place)
    assert {finding.verdict for finding in findings.values()} <= {Verdict.FINE, Verdict.NOTE}
    assert list(place.iterdir()) == []


def test_taken_ports_are_named(place: Path) -> None:
    """A port somebody listens on is found before the start fails."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finding = _examine(place, status=address)[f"status {address}"]
    assert (finding.verdict, finding.detail) == (Verdict.CANNOT, "the port is taken")


def test_a_daemon_that_answers_is_named(place: Path) -> None:
    """A live socket is in use; a dead one is not."""
    path = place / "f.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert _examine(place)[f"socket {path}"].verdict is Verdict.CANNOT
    assert _examine(place)[f"socket {path}"].verdict is Verdict.FINE


def test_an_owned_cache_is_named(place: Path) -> None:
    """A cache directory in use by another daemon cannot be served from."""
    with DirectoryLock(place / "cache"):
        assert _examine(place)["cache owner"].verdict is Verdict.CANNOT
    assert _examine(place)["cache owner"].verdict is Verdict.FINE


def test_every_lane_is_looked_at(place: Path) -> None:
    """The second lane's directory and socket are in use, though the first lane's are not."""
    with DirectoryLock(place / "cache" / "lanes" / "1"), socket.socket(socket.AF_UNIX) as listener:
        path = lane_address(f"unix://{place}/f.sock", 1).removeprefix("unix://")
        listener.bind(path)
        listener.listen()
        findings = _examine(place, lanes="2")
    assert findings["cache owner of lane 1"].verdict is Verdict.CANNOT
    assert findings[f"socket {path}"].verdict is Verdict.CANNOT
    assert findings[f"socket {place}/f.sock"].verdict is Verdict.FINE
    assert "cache owner" not in findings


def test_directories_that_cannot_be_written_are_named(place: Path) -> None:
    """A cache or socket directory of somebody else is found."""
    place.chmod(0o555)
    try:
        with as_nobody():
            findings = _examine(place, cache__bypass="0")
    finally:
        place.chmod(0o700)
    assert findings["cache directory"].verdict is Verdict.CANNOT
    assert findings[f"socket {place}/f.sock"].verdict is Verdict.CANNOT


def test_a_cache_larger_than_the_disk_is_noted(place: Path) -> None:
    """The disk is the limit then; that works, and is worth knowing."""
    assert _examine(place, cache__size="900TiB")["cache space"].verdict is Verdict.NOTE
    full = _examine(place, cache__free_reserve="900TiB", cache__bypass="0")["cache space"]
    assert full.verdict is Verdict.CANNOT


def test_a_cache_directory_that_may_recover_is_degraded(place: Path) -> None:
    """A directory without permission to write stops no daemon with ``cache.bypass``: the answer says what happens."""
    place.chmod(0o555)
    try:
        with as_nobody():
            finding = _examine(place, cache__bypass="64MiB")["cache directory"]
    finally:
        place.chmod(0o700)
    assert finding.verdict is Verdict.DEGRADED
    for said in ("Permission denied", "64MiB of memory", "every 10"):
        assert said in finding.detail


def test_a_full_disk_is_degraded_and_exit_code_0(feedd: Feedd, place: Path) -> None:
    """The daemon starts beside a full disk and serves, so the command succeeds and names what is missing."""
    outcome = _check(feedd, place, "--set", "cache.free_reserve=900TiB", "--set", "cache.bypass=64MiB")
    assert outcome.code == 0, outcome
    assert "degraded" in outcome.out
    assert "cannot serve" not in outcome.out
    assert "64MiB of memory" in outcome.out


def test_space_taken_by_the_cache_itself_is_not_missing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full of the cache's own entries has room for the cache, as for the daemon."""
    ref = ObjectRef("data", "a.tar", 3 * MIB, '"a"')
    entry = entry_layout.file_path(place / "cache", ref)
    entry.parent.mkdir(parents=True)
    entry.write_bytes(bytes(3 * MIB))
    monkeypatch.setattr(files, "free_bytes", lambda _directory: 0)
    assert _examine(place, cache__bypass="0")["cache space"].verdict is Verdict.FINE
    entry.unlink()
    assert _examine(place, cache__bypass="0")["cache space"].verdict is Verdict.CANNOT


@pytest.mark.parametrize("workers", ["auto", "3"])
def test_the_number_of_workers_is_shown(place: Path, workers: str) -> None:
    """Where a number is chosen for the machine, the answer says which."""
    most = config_machine.default_workers_max(())
    told = {"auto": f"{config_machine.default_workers(most)} at the start, at most {most}", "3": "always 3"}[workers]
    assert told in _examine(place, decode__workers=workers)["decode workers"].detail


def test_an_arena_larger_than_memory_cannot_be_served(place: Path) -> None:
    """Shared memory is memory."""
    assert _examine(place, arena__size="900TiB")["memory"].verdict is Verdict.CANNOT


@pytest.mark.parametrize(
    ("filesystem", "lacking"),
    [
        ("tmpfs tmpfs rw,size=9k", True),
        ("tmpfs tmpfs rw,huge=never", True),
        ("tmpfs tmpfs rw,huge=advise,size=9k", True),
        ("tmpfs none rw,huge=within_size", False),
        ("tmpfs none rw,huge=always,size=9k", False),
        ("ext4 /dev/vda rw", False),
    ],
)
def test_memory_in_small_pages_is_noted(tmp_path: Path, filesystem: str, lacking: bool) -> None:
    """A tmpfs without huge pages is told apart from one with, and from disks, by its line in the table of mounts."""
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /a\\040b rw shared:1 - {filesystem}"
    mounts.write_text(f"35 1 0:0 / / rw - tmpfs tmpfs rw\n{line}\n")
    assert lacks_huge_pages(tmp_path, mounts) is lacking
    mounts.write_text("35 1 999:0 / / rw - tmpfs tmpfs rw\n")
    assert not lacks_huge_pages(tmp_path, mounts)
