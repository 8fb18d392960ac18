"""How ranks agree on their end: what a rank posts, and in which order, also where a finalizer leaves in the middle."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import torch

from feedd_client.agreement import Agreement, Join
from feedd_client.errors import RanksDisagree

LOOKAHEAD = 1


class _Posted:
    """Takes note of what is posted; calls ``during`` in the middle of the first post, as a finalizer would come."""

    def __init__(self) -> None:
        self.posts: list[list[int]] = []
        self.during: Any = None

    def least(self, values: list[int]) -> tuple[torch.Tensor, Any]:
        during, self.during = self.during, None
        if during is not None:
            during()
        self.posts.append(values)
        return torch.tensor(values), None


def _within(seconds: float, what: Any) -> None:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for itself"


@pytest.mark.parametrize("times", [1, 3])
def test_a_finalizer_may_leave_in_the_middle_of_a_post(times: int) -> None:
    """A pass that is left while its own thread posts waits for nobody, and posts in the order of steps."""
    posted = _Posted()
    join = Join(cast("Agreement", posted), LOOKAHEAD)

    def leave() -> None:
        for _ in range(times):
            join.leave(2)

    posted.during = leave
    _within(10, lambda: join.post(4))
    assert posted.posts == [[5, 0, 0], [-1, 1, -1], [-1, 2, -2], [-1, 3, -3]]
    with pytest.raises(RanksDisagree, match="this rank has left"):
        join.post(4)


def test_another_thread_may_leave_in_the_middle_of_a_post() -> None:
    """Who leaves while another thread posts goes on at once; the other posts it, after its own."""
    posted = _Posted()
    join = Join(cast("Agreement", posted), LOOKAHEAD)
    posted.during = lambda: _within(10, lambda: join.leave(1))
    join.post(7)
    assert posted.posts == [[8, 0, 0], [-1, 1, -1], [-1, 2, -2]]
