"""A cache directory in which other users could plant shards or links is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.cache.lock import DirectoryLock, check_private
from feedd.errors import CacheUnavailable

if TYPE_CHECKING:
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
