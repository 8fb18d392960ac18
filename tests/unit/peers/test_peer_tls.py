"""TLS files of peers that change while they are in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from feedd.peers.peer_options import PeerTls
from feedd.peers.peer_tls import PeerContexts
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from feedd.protocols import Clock


class _Looks:
    """A clock: instead of each sleep, the next call is made; the last one ends the test."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self._calls = list(calls)

    async def sleep_s(self, _: float) -> None:
        """Make the next call."""
        if not self._calls:
            raise asyncio.CancelledError
        self._calls.pop(0)()


def _nothing() -> None:
    pass


async def test_files_that_do_not_fit_are_told_once(tmp_path: Path) -> None:
    """A mistake is one line of the log, however often the files are looked at; the next change is read."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("node")
    contexts = PeerContexts(PeerTls(cert, key, authority.ca_path))
    contexts.read()
    looks = _Looks(
        _nothing,
        key.unlink,
        _nothing,
        lambda: key.write_bytes(b"no key"),
        _nothing,
        lambda: authority.issue("node"),
        _nothing,
    )
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await contexts.follow(cast("Clock", looks))
    assert [line["log_level"] for line in lines] == ["warning", "warning", "info"]
