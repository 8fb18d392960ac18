"""What an open says that gave up."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from feedd_client import opener as opener_module
from feedd_client.errors import DaemonUnreachable, Draining, ResourceError
from feedd_client.lifetime import StopSign
from feedd_client.opener import Opener, _Patience
from feedd_client.transport import FULL_HINT, is_full, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd_client.errors import FeedError


def _opener(*errors: Callable[[], FeedError]) -> Opener:
    """Return one whose daemon answers with those errors, the last one for ever, each with a cause."""
    left = list(errors)

    def connect(_daemon_of: Callable[[int], int]) -> object:
        error = left.pop(0)() if len(left) > 1 else left[0]()
        raise error from OSError(f"the cause of {error.message}")

    opener = Opener.__new__(Opener)
    for name, value in (
        ("_options", SimpleNamespace(open_timeout_s=1.0)),
        ("_connect", connect),
        ("forget", lambda: None),
    ):
        setattr(opener, name, value)
    return opener


def test_the_last_error_keeps_its_cause() -> None:
    """What gRPC said is below what is said of it."""
    opener = _opener(lambda: DaemonUnreachable("nobody"))
    with pytest.raises(DaemonUnreachable) as caught:
        opener.open(0, 0.1, (DaemonUnreachable,), StopSign())
    assert str(caught.value.__cause__) == "the cause of nobody"


def test_a_daemon_that_was_going_away_is_why_nobody_is_there() -> None:
    """Whoever reads the error learns that there was a daemon."""
    opener = _opener(lambda: Draining("leaving"), lambda: DaemonUnreachable("nobody"))
    with pytest.raises(DaemonUnreachable) as caught:
        opener.open(0, 0.5, (Draining,), StopSign())
    assert isinstance(caught.value.__cause__, Draining)


@pytest.mark.parametrize(
    ("error", "elapsed_s", "longest_s"),
    [
        (Draining, 0.5, 0.02),  # a successor that stands by: each pause is a part of the trainer's
        (DaemonUnreachable, 0.5, 0.02),
        (DaemonUnreachable, 5.0, 0.1),
        (Draining, 60.0, 2.0),
        (ResourceError, 0.5, 2.0),  # others have the memory, which takes them longer
    ],
)
def test_a_daemon_that_is_being_replaced_is_tried_often(
    monkeypatch: pytest.MonkeyPatch, error: type[FeedError], elapsed_s: float, longest_s: float
) -> None:
    """Pauses double up to a limit by the kind of error and the time since the first try."""
    pauses: list[float] = []
    now = SimpleNamespace(s=0.0)
    stop = SimpleNamespace(wait=pauses.append)

    def monotonic() -> float:
        now.s = elapsed_s if pauses else 0.0
        return float(now.s)

    monkeypatch.setattr(opener_module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(opener_module, "random", SimpleNamespace(uniform=lambda _low, high: high))

    def failing() -> FeedError:
        if len(pauses) >= 12:
            raise KeyboardInterrupt
        return error("not now")

    with pytest.raises(KeyboardInterrupt):
        _opener(failing).open(0, 1000.0, (error,), cast("StopSign", stop))
    assert max(pauses[1:]) == longest_s
    assert pauses[1:] == sorted(pauses[1:])


@pytest.mark.parametrize(
    ("said", "scheme", "full", "try_count"),
    [
        (b"", "", True, 9),  # closed at once: wait for a place
        (bytes(3) + b"\x04" + bytes(5), "", None, 2),  # HTTP/2 greets: a place has become free
        (None, "tls://", None, 2),  # with TLS the client speaks first
        (None, "", False, 0),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "", False, 0),
        ("closed port", "", False, 0),
    ],
)
def test_an_open_waits_for_a_place(said: bytes | str | None, scheme: str, *, full: bool | None, try_count: int) -> None:
    """A first open goes on while a daemon has no place for it; other servers and closed ports are reported soon."""
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                conn = listener.accept()[0]
            except OSError:
                return
            if said == b"":
                conn.close()
                continue
            kept.append(conn)
            if isinstance(said, bytes):
                conn.sendall(said)

    listener = socket.create_server(("127.0.0.1", 0))
    address = f"{scheme}127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=serve)
    if said == "closed port":
        listener.close()
    else:
        thread.start()
    try:
        assert is_full(parse_address(address)) is full
        patience, error = _Patience((Draining,)), DaemonUnreachable("cut off", object=address)
        assert [patience.covers(error) for _ in range(9)].count(True) == try_count
        assert (error.hint == FULL_HINT) is bool(full)
    finally:
        if said != "closed port":
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()
        for conn in kept:
            conn.close()
