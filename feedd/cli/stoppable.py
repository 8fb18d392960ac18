"""Commands that work until they are done or a signal stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from feedd.daemon.signals import StopRequests

_T = TypeVar("_T")


def run_stoppable(work: Callable[[StopRequests], Coroutine[object, object, _T]]) -> _T:
    """Return the result of ``work``, run on an event loop of its own; it is given the signals that came.

    Raises:
        As ``work`` does; of several errors at once, the one to show.
    """
    # The SDK takes most of a second to import; a wrong flag is reported before that.
    import uvloop  # noqa: PLC0415 - see above

    from feedd.daemon.failures import single  # noqa: PLC0415 - see above
    from feedd.daemon.signals import StopRequests, handled  # noqa: PLC0415 - see above

    async def run() -> _T:
        requests = StopRequests()
        with handled(requests):
            return await work(requests)

    try:
        return uvloop.run(run())
    except BaseExceptionGroup as group:
        raise single(group) from group
