"""Where DataLoader workers stand, when each may have loaded another epoch."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from feedd_client.epochs import Epochs
from feedd_client.errors import StateError

PASS, ANOTHER = 7000, 6000


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_workers_go_back_to_epochs_of_their_own(order: tuple[int, int]) -> None:
    """One of them had its part of epoch 4 already: whoever says so first, each stands where it was."""
    found = Epochs()
    found.set(9, None)
    wanted = {0: 5, 1: 4}
    for worker in order:
        found.set(wanted[worker], worker)
        assert found.current(worker) == wanted[worker]
    assert {worker: found.current(worker) for worker in wanted} == wanted


def test_who_is_behind_is_known_when_all_have_loaded() -> None:
    """The epoch of the one that is furthest back; workers wait for each other's."""
    found, least = Epochs(), []
    found.loaded(5, 0, PASS)
    waiting = threading.Thread(target=lambda: least.append(found.first_loaded(2, PASS, 20)))
    waiting.start()
    found.loaded(4, 1, PASS)
    waiting.join()
    assert least == [4]


def test_other_passes_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what was loaded in another pass nor, where seeds come again, by workers that are gone."""
    found = Epochs()
    found.loaded(5, 0, PASS)
    found.loaded(4, 1, ANOTHER)
    with pytest.raises(StateError, match="2 DataLoader workers to load a state, got 1"):
        found.first_loaded(2, PASS, 0.01)
    found.loaded(4, 1, PASS)
    mine = os.getpid()

    def kill(pid: int, _: Any) -> None:
        assert pid == mine
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(StateError):
        found.first_loaded(2, PASS, 0.01)
