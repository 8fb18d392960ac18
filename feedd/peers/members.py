"""The members of the cluster: configured, resolved by DNS, or read from a file that another tool writes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

import structlog

from feedd.flow.pools import DNS, LOCAL_FILES
from feedd.metrics import PEER_MEMBERS
from feedd.peers.rendezvous import holder_of
from feedd.units import parse_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from feedd.peers.peer_options import PeerOptions
    from feedd.protocols import Recorder
    from feedd.values import ObjectRef

_RESOLVE_S: Final = 5.0
_LANE_PORTS: Final = 100  # as config.types.lane_address counts
_FILE_BYTES_MAX: Final = 1 << 20
_log = structlog.get_logger(__name__)


class Members:
    """The addresses of all daemons that share their caches, and which of them is this one.

    A name that cannot be resolved, or a file that cannot be read, leaves its last members in use.

    Args:
        options: where members are found.
        port: port that this daemon listens on.
        recorder: takes the measurements.

    Attributes:
        current: all addresses, ``host:port`` with literal hosts. Replaced as a whole; any thread may read it.
        own: this daemon's address; empty: it is not among the members, and reads from peers without serving them.
    """

    def __init__(self, options: PeerOptions, port: int, recorder: Recorder) -> None:
        self._options = options
        self._port = port
        self._recorder = recorder
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._in_file: tuple[str, ...] = ()
        self._complaints: set[str] = set()
        self.current: tuple[str, ...] = ()
        self.own = ""

    def __repr__(self) -> str:
        return f"Members({len(self.current)}, own {self.own or 'none'})"

    def holder_of(self, ref: ObjectRef, usable: Callable[[str], bool]) -> str | None:
        """Return the other member that holds an entry; None: this daemon does, or there is no other usable one."""
        holder = holder_of((one for one in self.current if one == self.own or usable(one)), ref)
        return None if holder == self.own else holder

    async def refresh(self) -> bool:
        """Read the file and resolve the names; return whether the members changed."""
        path = self._options.members_file
        if path is not None:
            self._in_file = await LOCAL_FILES.run(self._read, path)
        names = dict.fromkeys((*self._options.members, *self._in_file))
        resolved = await asyncio.gather(*map(self._resolve, names))
        found = sorted({lane for addresses in resolved for address in addresses for lane in self._lanes(address)})
        current = tuple(found)
        own = self.own
        if current != self.current or self._options.address:
            own = await self._own_of(current)
        if (current, own) == (self.current, self.own):
            return False
        _log.info("members of the peer cache", count=len(current), own=own or "none", members=current[:16])
        if current and not own:
            hint = "set peers.address to this daemon's own address among the members"
            _log.warning("this daemon is no member of the peer cache: it reads from peers only", hint=hint)
        self.current, self.own = current, own
        self._recorder.gauge(PEER_MEMBERS, len(current))
        return True

    def retire(self) -> None:
        """Set the gauge to zero."""
        self._recorder.gauge(PEER_MEMBERS, 0)

    def _read(self, path: Path) -> tuple[str, ...]:
        """Return the members in the file; runs in a thread."""
        try:
            with path.open("rb") as file:
                lines = file.read(_FILE_BYTES_MAX).decode(errors="replace").splitlines()
        except OSError as error:
            self._complain(f"the file of members cannot be read: {error}")
            return self._in_file
        texts = (line.partition("#")[0].strip() for line in lines)
        return tuple(text for text in texts if text and self._is_member(text))

    def _is_member(self, text: str) -> bool:
        try:
            parse_host_port(text)
        except ValueError as error:
            self._complain(f"a line of the file of members is left out: {error}")
            return False
        return True

    async def _resolve(self, name: str) -> tuple[str, ...]:
        """Return the addresses of a member, with its port; a literal address is its own."""
        host, port = parse_host_port(name)
        try:
            return (_join(ipaddress.ip_address(host).compressed, port),)
        except ValueError:
            pass
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = await DNS.run(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        except OSError as error:  # TimeoutError is one
            self._complain(f"a member cannot be resolved: {host}: {error}")
        else:
            self._addresses[name] = tuple(sorted({_join(str(where[0]), port) for *_, where in found}))
        return self._addresses.get(name, ())

    def _lanes(self, address: str) -> Iterable[str]:
        host, port = parse_host_port(address)
        return (_join(host, port + _LANE_PORTS * lane) for lane in range(self._options.lane_count))

    async def _own_of(self, members: Collection[str]) -> str:
        """Return this daemon's address among the members; empty: it is not among them."""
        if not self._options.address:
            return await LOCAL_FILES.run(self._local_of, members)
        hosts = [parse_host_port(one)[0] for one in await self._resolve(self._options.address)]
        return next((own for host in hosts if (own := _join(host, self._port)) in members), "")

    def _local_of(self, members: Iterable[str]) -> str:
        """Return the member with an address of this machine and this daemon's port; runs in a thread."""
        for member in members:
            host, port = parse_host_port(member)
            if port == self._port and _is_local(host):
                return member
        return ""

    def _complain(self, message: str) -> None:
        if message not in self._complaints:
            self._complaints.add(message)
            _log.warning(message)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_local(host: str) -> bool:
    """Whether an address is one of this machine: only such an address can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
