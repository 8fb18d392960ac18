"""How a trainer finds its daemon on a node with lanes, while some of them answer."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import autostart, runtime
from feedd_client.errors import DaemonUnreachable, Draining
from feedd_client.leases import PrivateCopies
from feedd_client.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.transport import Address

NODE = "unix:///run/node.sock"


class _Endpoint:
    """A daemon's endpoint that counts its closings."""

    count = 2
    made: list[_Endpoint]

    def __init__(self, address: Address) -> None:
        self.address = address
        self.asked = 0
        self.closed = 0
        self.made.append(self)

    def daemon_count(self, _timeout_s: float) -> int:
        self.asked += 1
        return self.count

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> dict[str, OSError]:
    """Addresses that do not answer, and why; all others do."""
    failing: dict[str, OSError] = {}
    _Endpoint.made = []
    _Endpoint.count = 2
    for module in (runtime, autostart):
        monkeypatch.setattr(module, "probe", lambda address: failing.get(address.text))
    monkeypatch.setattr(runtime, "Endpoint", _Endpoint)
    return failing


def _connected(daemon_of: Callable[[int], int], at: Runtime | None = None, node: str = NODE) -> str:
    return (at or Runtime(node, PrivateCopies(1))).connect(daemon_of).address.text


def _refused() -> ConnectionRefusedError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_the_first_daemon_is_asked_once(down: dict[str, OSError]) -> None:
    """Later connections go to the same daemon without a question; what was only asked is closed."""
    trainer = Runtime(NODE, PrivateCopies(1))
    for _ in range(3):
        assert _connected(lambda _: 1, trainer) == f"{NODE}.lane1"
        trainer.drop_channel()
    asked, *used = _Endpoint.made
    assert (asked.address.text, asked.asked, asked.closed) == (NODE, 1, 1)
    assert [(one.asked, one.closed) for one in used] == [(0, 0)] * 3


def test_the_asked_daemon_may_be_the_wanted_one(down: dict[str, OSError]) -> None:
    """Then its channel is used on."""
    assert _connected(lambda _: 0) == NODE
    (only,) = _Endpoint.made
    assert only.closed == 0


def test_the_second_daemon_answers_for_the_first(down: dict[str, OSError]) -> None:
    """While the first daemon starts again, trainers of other lanes begin new passes."""
    down[NODE] = _refused()
    _Endpoint.count = 3
    assert _connected(lambda _: 2) == f"{NODE}.lane2"
    assert _connected(lambda _: 1) == f"{NODE}.lane1"
    with pytest.raises(Draining, match="3 daemons"):  # the client tries again
        _connected(lambda _: 0)


def test_a_daemon_that_starts_again_is_awaited(down: dict[str, OSError]) -> None:
    """A refused connection will be accepted soon; a socket that is missing may not be mounted."""
    down[f"{NODE}.lane1"] = _refused()
    with pytest.raises(Draining):
        _connected(lambda _: 1)
    down[f"{NODE}.lane1"] = FileNotFoundError(errno.ENOENT, "missing")
    with pytest.raises(DaemonUnreachable, match="mount the socket's folder"):
        _connected(lambda _: 1)
    assert all(one.closed for one in _Endpoint.made)


def test_a_closed_channel_is_not_used_again(down: dict[str, OSError]) -> None:
    """The channel of the daemon that was only asked is forgotten, even if the wanted daemon does not answer."""
    down[f"{NODE}.lane1"] = _refused()
    trainer = Runtime(NODE, PrivateCopies(1))
    with pytest.raises(Draining):
        _connected(lambda _: 1, trainer)
    found: object = trainer.connect(lambda _: 0)
    assert isinstance(found, _Endpoint)
    assert found.closed == 0


@pytest.mark.parametrize("node", [NODE, "10.0.0.1:7070", "unix:///" + "x" * 98])
def test_nobody_answers(down: dict[str, OSError], node: str) -> None:
    """A node without a daemon is an error at once; over TCP, another port may belong to anything."""
    down[node] = _refused()
    if node == NODE:
        down[f"{NODE}.lane1"] = _refused()
    with pytest.raises(DaemonUnreachable, match="start a daemon"):
        _connected(lambda _: 0, node=node)
    assert not _Endpoint.made


def test_the_number_is_asked_again_if_lanes_have_gone(down: dict[str, OSError]) -> None:
    """A node that was started with fewer lanes says so."""
    trainer = Runtime(NODE, PrivateCopies(1))
    assert _connected(lambda count: count - 1, trainer) == f"{NODE}.lane1"
    trainer.drop_channel()
    _Endpoint.count = 1
    down[f"{NODE}.lane1"] = _refused()
    assert _connected(lambda count: count - 1, trainer) == NODE


def test_no_daemon_is_started_beside_a_node(down: dict[str, OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the first daemon of the default node is down, the node is used."""
    monkeypatch.setenv("FEEDD_ADDRESS", "")
    monkeypatch.setattr(autostart, "_ephemeral", lambda *_: "started")
    default = autostart.DEFAULT_ADDRESS
    assert autostart.resolve_address(None) == default
    down[default] = _refused()
    monkeypatch.setenv("FEEDD_ADDRESS", "")
    assert autostart.resolve_address(None) == default
    down[f"{default}.lane1"] = _refused()
    monkeypatch.setenv("FEEDD_ADDRESS", "")
    assert autostart.resolve_address(None) == "started"


@pytest.mark.parametrize(("lane_count", "is_used"), [(None, True), (2, True), (4, False)])
def test_a_session_of_another_plan_is_not_used(lane_count: int | None, is_used: bool) -> None:
    """A pass with other lanes than the idle session's has other samples; that session is closed."""
    closed: list[bool] = []
    session: Any = SimpleNamespace(
        lane_count=2,
        free_count=4,
        slot_count=4,
        shared_slot_count=0,
        collect=lambda: None,
        leased=SimpleNamespace(payloads=list),
        close=lambda: closed.append(True),
    )
    trainer = Runtime(NODE, PrivateCopies(1))
    trainer.give_back(session)
    found: object = trainer.borrow(lane_count)
    assert (found is session) == is_used
    assert closed == ([] if is_used else [True])
