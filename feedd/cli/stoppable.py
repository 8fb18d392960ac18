"""Runs the work of a command on an event loop: to its end, or until a signal stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from feedd.daemon.signals import StopRequests

_T = TypeVar("_T")


def run_async(work: Coroutine[object, object, _T]) -> _T:
    """Return the result of ``work``, run on an event loop of its own.

    Raises:
        As ``work`` does; of several errors at once, the one to show.
    """
    # uvloop and the daemon's parts take long to import; a wrong flag is reported before that.
    import uvloop  # noqa: PLC0415 - see above

    from feedd.daemon.failures import single  # noqa: PLC0415 - see above

    try:
        return uvloop.run(work)
    except BaseExceptionGroup as group:
        raise single(group) from group


def run_stoppable(work: Callable[[StopRequests], Coroutine[object, object, _T]]) -> _T:
    """Return the result of ``work``, run as by ``run_async``; it is given the signals that came.

    Raises:
        As ``run_async`` does.
    """
    # The SDK takes most of a second to import; a wrong flag is reported before that.
    from feedd.daemon.signals import StopRequests, handled  # noqa: PLC0415 - see above

    async def run() -> _T:
        requests = StopRequests()
        with handled(requests):
            return await work(requests)

    return run_async(run())
