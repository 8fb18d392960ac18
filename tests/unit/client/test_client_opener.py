"""What an open says that gave up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from feedd_client.errors import DaemonUnreachable, Draining
from feedd_client.lifetime import StopSign
from feedd_client.opener import Opener

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
