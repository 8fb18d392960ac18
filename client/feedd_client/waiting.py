"""Logs what a slow Open waits for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from feedd_client._wire import feedd_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

_log: Final = logging.getLogger("feedd_client")
FIRST_S: Final = 5.0
STATUS_TIMEOUT_S: Final = 2.0


@contextlib.contextmanager
def telling_why(stub: Any, request: pb.OpenRequest, address: str) -> Iterator[None]:  # noqa: ANN401 - generated, untyped
    """Log what ``request`` waits for: first after 5 s, then at growing intervals, until the body ends.

    Args:
        stub: stub of the Feed service.
        request: the Open request; its ``open_id`` identifies the Open.
        address: address of the daemon, as the user wrote it.
    """
    over = threading.Event()
    thread = threading.Thread(target=_report, args=(stub, request, address, over), name="feedd-open", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _report(stub: Any, request: pb.OpenRequest, address: str, over: threading.Event) -> None:  # noqa: ANN401 - see above
    began_s, pause_s = time.monotonic(), FIRST_S
    urls = list(request.urls) or [source.urls[0] for source in request.sources]
    while not over.wait(pause_s):
        why = _waits_for(stub, request.open_id) or f"no answer from the daemon at {address}"
        if not over.is_set():
            _log.warning("still opening %s after %.0f s: %s", urls[0], time.monotonic() - began_s, why)
        pause_s = min(2 * pause_s, 60.0)


def _waits_for(stub: Any, open_id: str) -> str:  # noqa: ANN401 - see above
    """Return the daemon's reason why the Open waits; empty if it gives none."""
    try:
        answer = stub.OpenStatus(pb.OpenStatusRequest(open_id=open_id), timeout=STATUS_TIMEOUT_S)
    except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
        return ""
    return str(answer.waits_for)
