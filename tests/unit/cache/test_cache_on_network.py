"""A cache directory on a network: refused, noted by ``feedd check``, or allowed by the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache_options import CacheOptions
from feedd.cache.caches import DiskCache
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
        async with DiskCache(options, rig.fetcher, rig.recorder, SystemClock()):
            pass
    assert kind in str(caught.value)
    assert str(rig.directory) in str(caught.value)
    assert "SIGBUS" in str(caught.value)
    assert "cache.allow_network_fs" in caught.value.hint
    assert not rig.directory.exists()
    allowed = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=0, allow_network_fs=True)
    async with DiskCache(allowed, rig.fetcher, rig.recorder, SystemClock()) as cache:
        assert cache.limit_bytes


async def test_a_rootless_container_keeps_its_cache_on_its_root(tmp_path: Path, lies_on: Callable[[str], None]) -> None:
    """The root file system of a rootless container is FUSE over a local disk, and serves as a cache like any disk."""
    lies_on("fuse.fuse-overlayfs")
    rig = CacheRig(tmp_path / "cache")
    options = CacheOptions(rig.directory, size_bytes=1 << 20, free_reserve_bytes=0)
    async with DiskCache(options, rig.fetcher, rig.recorder, SystemClock()) as cache:
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
