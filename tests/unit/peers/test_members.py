"""Who the members are: configured, resolved, and read from a file."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from feedd.metrics import PEER_MEMBERS
from feedd.peers.members import Members
from feedd.peers.peer_options import PeerOptions
from feedd.values import ObjectRef
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PORT = 7072
FAR = tuple(f"192.0.2.{number}:{PORT}" for number in range(1, 5))


def _members(*names: str, **options: Any) -> Members:
    return Members(PeerOptions(f"0.0.0.0:{PORT}", names, **options), PORT, TallyRecorder())


async def test_this_daemon_is_found_among_the_members() -> None:
    """The member with an address of this machine and the port listened on is this daemon."""
    members = _members(*FAR, f"127.0.0.1:{PORT + 1}", f"127.0.0.1:{PORT}")
    await members.refresh()
    assert members.own == f"127.0.0.1:{PORT}"
    assert set(members.current) == {*FAR, "127.0.0.1:7072", "127.0.0.1:7073"}


async def test_an_address_given_by_the_operator() -> None:
    """Where addresses are translated on the way, the operator says which one is this daemon."""
    members = _members(*FAR, address=FAR[2])
    await members.refresh()
    assert members.own == FAR[2]
    stranger = _members(*FAR, address="192.0.2.77:7072")
    await stranger.refresh()
    assert stranger.own == ""


async def test_a_name_given_by_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may be resolved later than the members; its port does not matter, because lanes have others."""
    found: list[str] = []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        if not found:
            raise socket.gaierror("unknown name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    members = _members(*FAR, address="node-3.cluster:7072")
    assert await members.refresh()
    assert (members.own, len(members.current)) == ("", len(FAR))
    found += ["10.0.0.3", "192.0.2.3"]
    assert await members.refresh()
    assert members.own == FAR[2]
    assert not await members.refresh()


async def test_a_name_stands_for_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a headless service of Kubernetes; if the name is lost for a while, its last addresses stay."""
    found: list[str] = ["192.0.2.7", "192.0.2.9", "2001:db8::1"]

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        assert (host, port) == ("feedd-peers", PORT)
        if not found:
            raise socket.gaierror("unknown name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    recorder = TallyRecorder()
    members = Members(PeerOptions(f"0.0.0.0:{PORT}", (f"feedd-peers:{PORT}",)), PORT, recorder)
    await members.refresh()
    assert list(members.current) == ["192.0.2.7:7072", "192.0.2.9:7072", "[2001:db8::1]:7072"]
    found.clear()
    await members.refresh()
    assert recorder.total(PEER_MEMBERS) == len(members.current) == 3
    found.append("192.0.2.8")
    await members.refresh()
    assert list(members.current) == ["192.0.2.8:7072"]
    members.retire()
    assert recorder.total(PEER_MEMBERS) == 0


async def test_a_file_that_another_tool_writes(tmp_path: Path) -> None:
    """Its members join those of the configuration; what is no member is left out, and a lost file changes nothing."""
    path = tmp_path / "members"
    members = _members(FAR[0], members_file=path)
    await members.refresh()
    assert members.current == FAR[:1]
    path.write_text(f"# written by the prolog\n{FAR[1]}\n\n{FAR[0]}  # again\nnonsense\n")
    await members.refresh()
    assert members.current == FAR[:2]
    path.write_text(f"{FAR[3]}\n")
    await members.refresh()
    assert members.current == (FAR[0], FAR[3])
    path.unlink()
    await members.refresh()
    assert members.current == (FAR[0], FAR[3])


async def test_lanes_of_a_node_are_members() -> None:
    """A member stands for all daemons of its node, whose ports are a hundred apart."""
    members = Members(PeerOptions("0.0.0.0:7072", FAR[:1], lane_count=3), PORT, TallyRecorder())
    await members.refresh()
    assert set(members.current) == {"192.0.2.1:7072", "192.0.2.1:7172", "192.0.2.1:7272"}


async def test_failing_members_hold_nothing() -> None:
    """The entries of a member that is left alone go to the others, and come back with it."""
    members = _members(*FAR, address=FAR[0])
    await members.refresh()
    refs = [ObjectRef("s3://data", f"{number}", 1, "etag") for number in range(400)]
    before = {ref: members.holder_of(ref, lambda _: True) for ref in refs}
    without = {ref: members.holder_of(ref, lambda member: member != FAR[3]) for ref in refs}
    assert set(before.values()) == {None, *FAR[1:]}
    assert set(without.values()) == {None, *FAR[1:3]}
    assert all(without[ref] == before[ref] for ref in refs if before[ref] != FAR[3])
    alone = {members.holder_of(ref, lambda _: False) for ref in refs}
    assert alone == {None}, "this daemon holds everything then"
