"""Items as Ray tasks: each once, errors with their item, and no task is left behind. Ray itself is imitated."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadShard, FeeddError, Unsupported, WorkerLost
from feedd.flow.ray_tasks import RayWork, run_on_ray

if TYPE_CHECKING:
    from collections.abc import Callable


class _RayError(Exception):
    """What Ray raises for a task that it has given up."""


class _Ray(SimpleNamespace):
    """A cluster that runs tasks on the event loop."""

    def __init__(self) -> None:
        super().__init__(exceptions=SimpleNamespace(RayError=_RayError), calls=[], running=0)

    def init(self, **_: object) -> None:
        self.calls.append("init")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def remote(self, **_: object) -> Callable[[Any], Any]:
        def task(function: Callable[[Any, Any], Any]) -> SimpleNamespace:
            async def run(job: object, item: object) -> Any:
                await asyncio.sleep(0)
                return function(job, item)

            return SimpleNamespace(remote=run)

        return task


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> _Ray:
    """The imitation, in the place of the package."""
    found = _Ray()
    monkeypatch.setitem(sys.modules, "ray", found)
    return found


def _work(function: Callable[[int, int], int | FeeddError]) -> RayWork[int, int, int]:
    return RayWork(function, 100, lambda item: f"shard {item}", "s3://out/", "pack")


async def test_each_item_is_done_once(ray: _Ray) -> None:
    """More items than waiting tasks; results come with their items."""
    found: dict[int, int] = {}

    async def done(item: int, result: int) -> None:
        assert item not in found
        found[item] = result

    await run_on_ray(_work(lambda job, item: job + item), range(1500), done)
    assert found == {item: 100 + item for item in range(1500)}
    assert ray.calls == ["init", "shutdown"]


async def test_errors_name_their_item(ray: _Ray) -> None:
    """An error that a task returned is raised as it is; a task that Ray gave up is named. Ray ends in both cases."""

    async def done(_item: int, _result: int) -> None:
        return

    def lost(_job: int, _item: int) -> int:
        raise _RayError("the node\n died")

    bad = BadShard("expected a tar", object="s3://in/3.tar")
    for function, kind in ((lambda _job, _item: bad, BadShard), (lost, WorkerLost)):
        with pytest.raises(ExceptionGroup) as caught:
            await run_on_ray(_work(function), [3], done)
        (error,) = caught.value.exceptions
        assert isinstance(error, kind)
        if error is not bad:
            assert "ray gave up shard 3: the node died" in str(error)
    assert ray.calls == ["init", "shutdown"] * 2


async def test_a_cancelled_run_ends_ray(ray: _Ray) -> None:
    """Whoever is cancelled leaves no cluster."""
    began = asyncio.Event()

    async def done(_item: int, _result: int) -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_on_ray(_work(lambda job, item: job + item), [1], done))
    await began.wait()
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    assert ray.calls == ["init", "shutdown"]


async def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)

    async def done(_item: int, _result: int) -> None:
        return

    with pytest.raises(Unsupported, match="expected ray") as caught:
        await run_on_ray(_work(lambda job, item: job + item), [1], done)
    assert "feedd[ray]" in caught.value.hint
