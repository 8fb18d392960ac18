"""A cache directory in which other users could plant files, or that lies on a network, is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.lock import DirectoryLock, check_private
from feedd.cache.options import CacheOptions
from feedd.cli.check import Verdict, examine
from feedd.clock import SystemClock
from feedd.config import load
from feedd.errors import CacheUnavailable
from feedd.flow import mounts
from tests.fakes.caches import CacheRig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory of this user alone."""
    found = tmp_path / "cache"
    found.mkdir(mode=0o700)
    return found


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_others_may_look(directory: Path, mode: int) -> None:
    """Reading is the operator's choice; the shards in it are 0600."""
    directory.chmod(mode)
    check_private(directory)
    with DirectoryLock(directory):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_others_may_not_write(directory: Path, mode: int) -> None:
    """The error names the mode, what to run, and a directory of one's own."""
    directory.chmod(mode)
    with pytest.raises(CacheUnavailable, match=f"got mode {mode:04o}") as refused, DirectoryLock(directory):
        pass
    assert f"chmod go-w {directory}" in refused.value.hint
    assert not list(directory.iterdir()), "nothing is written there"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give directories away")
def test_another_users_directory_is_refused(directory: Path) -> None:
    """Whatever its mode: that user may plant what it likes."""
    os.chown(directory, 61002, 61002)
    with pytest.raises(CacheUnavailable, match="got one of user 61002"):
        check_private(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change groups")
def test_a_group_of_the_same_number_is_ones_own(directory: Path) -> None:
    """With a umask of 002 such directories are usual; any other group is somebody else."""
    directory.chmod(0o770)
    check_private(directory)
    os.chown(directory, 0, 61002)
    with pytest.raises(CacheUnavailable, match="got mode 0770"):
        check_private(directory)


def test_a_link_is_refused(directory: Path, tmp_path: Path) -> None:
    """It could lead elsewhere the next time."""
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(CacheUnavailable, match="got a link"):
        check_private(link)


def test_a_lock_that_is_a_link_is_not_followed(directory: Path, tmp_path: Path) -> None:
    """What a link leads to is never written."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (directory / "lock").symlink_to(precious)
    with pytest.raises(CacheUnavailable), DirectoryLock(directory):
        pass
    assert precious.read_text() == "precious"


@pytest.fixture
def lies_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the kernel name a type for the mount of everything."""

    def name(kind: str) -> None:
        path = tmp_path / "mountinfo"
        path.write_text(f"21 1 0:40 / / rw - {kind} somewhere rw\n")
        monkeypatch.setattr(mounts, "_TABLE", path)

    return name


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"])
async def test_a_directory_on_a_network_is_refused(tmp_path: Path, lies_on: Callable[[str], None], kind: str) -> None:
    """The error names directory, type, reason and option; nothing is made there, and who allows it is served."""
    lies_on(kind)
    rig = CacheRig(tmp_path / "cache")
    options = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=0)
    with pytest.raises(CacheUnavailable) as caught:
        async with Cache(options, rig.fetcher, rig.recorder, SystemClock()):
            pass
    assert kind in str(caught.value)
    assert str(rig.directory) in str(caught.value)
    assert "SIGBUS" in str(caught.value)
    assert "cache.allow_network_fs" in caught.value.hint
    assert not rig.directory.exists()
    allowed = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=0, allow_network_fs=True)
    async with Cache(allowed, rig.fetcher, rig.recorder, SystemClock()) as cache:
        assert cache.limit_bytes


async def test_a_rootless_container_keeps_its_cache_on_its_root(tmp_path: Path, lies_on: Callable[[str], None]) -> None:
    """The root file system of a rootless container is FUSE over a local disk, and serves as a cache like any disk."""
    lies_on("fuse.fuse-overlayfs")
    rig = CacheRig(tmp_path / "cache")
    options = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=0)
    async with Cache(options, rig.fetcher, rig.recorder, SystemClock()) as cache:
        assert cache.limit_bytes


@pytest.mark.parametrize(
    ("kind", "allowed", "verdict"),
    [
        ("nfs4", "false", Verdict.CANNOT),
        ("nfs4", "true", Verdict.NOTE),
        ("fuse.gcsfuse", "false", Verdict.CANNOT),
        ("ext4", "false", Verdict.FINE),
        ("overlay", "false", Verdict.FINE),
        ("fuse.fuse-overlayfs", "false", Verdict.FINE),
        ("tmpfs", "false", Verdict.FINE),
        ("newfs", "false", Verdict.NOTE),
    ],
)
def test_check_tells_the_file_system(
    short_dir: Path, lies_on: Callable[[str], None], kind: str, allowed: str, verdict: Verdict
) -> None:
    """``feedd check`` names the type, and says cannot serve exactly where the daemon would refuse it."""
    lies_on(kind)
    values = {"cache.dir": f"{short_dir}/cache", "cache.size": "16MiB", "cache.allow_network_fs": allowed}
    config = load({name: (value, "flag") for name, value in values.items()}, {}).config
    (finding,) = [finding for finding in examine(config) if finding.question == "cache file system"]
    assert finding.verdict is verdict
    assert kind in finding.detail
