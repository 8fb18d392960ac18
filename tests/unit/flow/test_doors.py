"""Doors of ports: who gets a place, who loses one, and what happens without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import TYPE_CHECKING

import pytest

from feedd.flow import doors
from feedd.flow.doors import Door, Guest, PortLimits
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pairs() -> Iterator[contextlib.ExitStack]:
    """Close all sockets at the end."""
    with contextlib.ExitStack() as stack:
        yield stack


class _Visitors:
    """Makes connections, and knows which of them still last."""

    def __init__(self, stack: contextlib.ExitStack, door: Door) -> None:
        self._stack, self._door = stack, door
        self.mine: dict[str, socket.socket] = {}

    def come(self, name: str, source: object = "a", *, known: bool = False, busy: bool = False) -> Guest | None:
        mine, theirs = map(self._stack.enter_context, socket.socketpair())
        mine.setblocking(False)
        guest = self._door.admit(theirs, source)
        if guest is None:
            theirs.close()
        else:
            guest.known, guest.busy = known, busy
        self.mine[name] = mine
        return guest

    @property
    def left(self) -> str:
        """Names of the connections that neither were refused nor dropped."""
        lasting = []
        for name, mine in self.mine.items():
            try:
                assert mine.recv(1) == b""
            except BlockingIOError:
                lasting.append(name)
        return "".join(lasting)


@pytest.mark.parametrize(
    ("who", "left"),
    [
        # name, source, known, busy; of ten places six are for strangers, and four of those for one source
        ("1a 2a 3a 4a 5a 6a", "3456"),  # the oldest of the source goes
        ("1a 2a 3b 4b 5c 6c 7d", "234567"),  # the oldest of all goes
        ("1a! 2a! 3a! 4a! 5a", "1234"),  # all of the source are being answered: the new one is refused
        ("1a! 2a 3a 4a 5a", "1345"),  # the oldest that is silent goes
        ("1a+ 2a+ 3a+ 4a+ 5a 6a 7a 8a 9a", "12346789"),  # known ones count apart
        ("0a+ 1a+ 2a+ 3a+ 4a+ 5a+ 6a+ 7b 8b 9b xc", "0123456 89x"),  # a full door: a stranger goes, not a known one
        ("0a+ 1a+ 2a+ 3a+ 4a+ 5a+ 6a+ 7a+ 8a+ 9a+ xb", "123456789x"),  # only known ones: the oldest
        ("0a+! 1a+! 2a+! 3a+! 4a+! 5a+! 6a+! 7a+! 8a+! 9a+! xb", "0123456789"),
    ],
)
async def test_who_gets_a_place(pairs: contextlib.ExitStack, who: str, left: str) -> None:
    """The connection that has been silent longest makes room; no source takes all, and known ones keep a reserve."""
    visitors = _Visitors(pairs, Door("test", 10, strangers_max=6))
    for one in who.split():
        visitors.come(one[0], one[1], known="+" in one, busy="!" in one)
    assert visitors.left == left.replace(" ", "")


async def test_a_closed_connection_gives_its_place_back(pairs: contextlib.ExitStack) -> None:
    """What ended by itself counts no longer."""
    visitors = _Visitors(pairs, Door("test", 4, strangers_max=4))
    guests = [visitors.come(str(number), number) for number in range(4)]
    for guest in guests[:2]:
        assert guest is not None
        guest.sock.close()
    for number in (4, 5):
        assert visitors.come(str(number), number) is not None
    assert visitors.left == "2345"


class _Listener:
    """Fails to accept as often as it is told, as without descriptors; then waits."""

    def __init__(self, failures: int, code: int = errno.EMFILE) -> None:
        self.failures, self.code = failures, code
        self.tried_count = self.refused_count = 0

    async def sock_accept(self, _listener: object) -> tuple[socket.socket, object]:
        self.tried_count += 1
        if self.tried_count > self.failures:
            await asyncio.Event().wait()
        raise OSError(self.code, "none")

    def accept(self) -> tuple[socket.socket, object]:
        self.refused_count += 1
        return socket.socket(), None


@pytest.mark.parametrize("silent", [True, False])
async def test_without_descriptors_a_silent_guest_goes_or_the_new_one(
    pairs: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """The port pauses and goes on. Who cannot be let in is refused at once, with the descriptor kept for that."""
    listener = _Listener(3)
    monkeypatch.setattr(doors, "_PAUSE_S", 0.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", listener.sock_accept, raising=False)
    with Door("test", 10) as door:
        visitors = _Visitors(pairs, door)
        visitors.come("1", busy=not silent)
        spare = door._spare
        accepting = asyncio.ensure_future(door.accept(listener))  # type: ignore[arg-type]  # stands in for a socket
        await until(lambda: listener.tried_count == 4)
        accepting.cancel()
        await asyncio.wait([accepting])
        assert visitors.left == ("" if silent else "1")
        assert listener.refused_count == (2 if silent else 3)
        assert spare >= 0
        assert door._spare >= 0, "kept for the next time"
    assert door._spare == -1


def test_ports_leave_descriptors_for_the_work() -> None:
    """At any limit from 160 files on, ports together take 3/5 of the files at most, and each has some places."""
    for files in (*range(160, 5000), 65536, 1 << 20, -1):
        limits = PortLimits.of(files)
        together = limits.status + limits.grpc + limits.admin + limits.arena + limits.peers
        assert together <= (files if files > 0 else 1 << 20) * 3 / 5 + 5
        assert min(limits.status, limits.grpc, limits.admin, limits.arena, limits.peers) >= 4
