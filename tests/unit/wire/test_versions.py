"""Both sides speak one protocol: client and daemon of this repository, and neighbours of one minor version."""

from __future__ import annotations

import pytest

from feedd.errors import VersionMismatch
from feedd.wire import feed_messages
from feedd.wire import feedd_pb2 as pb
from feedd_client import _version


def test_client_and_daemon_name_the_same_version() -> None:
    """Each side has the number in its own package, and a release raises both."""
    ours = feed_messages.PROTOCOL_MAJOR, feed_messages.PROTOCOL_MINOR
    assert ours == (_version.PROTOCOL_MAJOR, _version.PROTOCOL_MINOR)


@pytest.mark.parametrize("minor", range(8))
@pytest.mark.parametrize("major", [0, 1, 2])
def test_one_minor_version_apart_works(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    """A daemon of 1.4 serves clients of 1.3 to 1.5, and names both versions and what to upgrade to all others."""
    monkeypatch.setattr(feed_messages, "PROTOCOL_MINOR", 4)
    version = pb.ProtocolVersion(major=major, minor=minor)
    if major == 1 and minor in {3, 4, 5}:
        feed_messages.check_version(version)
        return
    with pytest.raises(VersionMismatch, match=r"expected protocol 1\.4, or one minor version apart, got ") as refused:
        feed_messages.check_version(version)
    behind = "feedd on this node" if (major, minor) > (1, 4) else "feedd-client in the training environment"
    assert refused.value.hint == f"upgrade {behind}"
