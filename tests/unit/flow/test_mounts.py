"""The table of mounts, and which of them a path lies on."""

from __future__ import annotations

import pytest

from feedd.flow.mounts import mount_of, parse_mounts, read_mounts

_LINES = [
    "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw",
    "30 21 0:40 / /mnt rw - xfs /dev/nvme0n1 rw",
    "31 30 0:41 / /mnt/a\\040b rw,relatime shared:2 master:1 - nfs4 server:/x rw,vers=4.2",
    "32 30 0:42 / /mnt/old rw - ext4 /dev/sdb rw",
    "33 32 0:43 / /mnt/old rw - fuse.sshfs me@there:/ rw",
    "torn",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/cache/feedd", "ext4"),
        ("/mnt", "xfs"),
        ("/mnt/new", "xfs"),
        ("/mnt/a b/cache", "nfs4"),
        ("/mnt/a bc", "xfs"),
        ("/mnt/old/cache", "fuse.sshfs"),
        ("/mnt/old/", "fuse.sshfs"),
        ("/", "ext4"),
    ],
)
def test_the_innermost_and_last_mount_counts(path: str, kind: str) -> None:
    """The longest mount point above the path tells the type, and of two at one point the later one."""
    mount = mount_of(path, parse_mounts(_LINES))
    assert mount is not None
    assert mount.kind == kind


def test_a_table_that_names_no_root() -> None:
    """A path above all mounts lies on none."""
    assert mount_of("/var", parse_mounts(_LINES[1:])) is None


def test_this_machine_has_a_root() -> None:
    """The kernel's own table is read."""
    assert mount_of("/", read_mounts()) is not None
