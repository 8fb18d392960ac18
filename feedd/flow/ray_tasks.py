"""Work that is cut into items, done as Ray tasks: one task for each item, on any node of a cluster.

Ray may run a task again, on any node, so the result of a task must depend on its arguments alone. Only arguments and
results travel through Ray, no data.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from feedd.errors import FeeddError, Unsupported, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

_Job = TypeVar("_Job")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_TASKS_MAX: Final = 1000  # waiting tasks let a cluster grow
_RETRIES: Final = 5


@dataclass(frozen=True, slots=True)
class RayWork(Generic[_Job, _Item, _Result]):
    """What tasks do.

    Attributes:
        function: a function of a module, called with the job and an item. It returns errors that need no other try.
        job: what every task is told.
        name: names an item in errors.
        target: URL of the object that all tasks work for, for errors.
        stage: the stage of errors.
    """

    function: Callable[[_Job, _Item], _Result | FeeddError]
    job: _Job
    name: Callable[[_Item], str]
    target: str
    stage: str


async def run_on_ray(
    work: RayWork[_Job, _Item, _Result], items: Iterable[_Item], done: Callable[[_Item, _Result], Awaitable[None]]
) -> None:
    """Do all items, on the cluster of ``$RAY_ADDRESS`` or on this machine. If the caller is cancelled, tasks end.

    Args:
        work: what each task does. A task has one CPU.
        items: taken one after another as tasks end.
        done: called with each item and its result.

    Raises:
        Unsupported: Ray is not installed.
        WorkerLost: Ray gave up a task.
        FeeddError: the first error that a task returned.
    """
    with _cluster(work.stage) as ray:
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(work.function)
        left = iter(items)

        async def take() -> None:
            for item in left:  # the iterator is shared: each coroutine takes the next item
                try:
                    result: _Result | FeeddError = await task.remote(work.job, item)
                except ray.exceptions.RayError as error:
                    raise WorkerLost(
                        f"ray gave up {work.name(item)}: {' '.join(str(error).split())}",
                        object=work.target,
                        hint="run the command again to continue",
                        stage=work.stage,
                    ) from error
                if isinstance(result, FeeddError):
                    raise result
                await done(item, result)

        async with asyncio.TaskGroup() as group:
            for _ in range(_TASKS_MAX):
                group.create_task(take())


@contextlib.contextmanager
def _cluster(stage: str) -> Iterator[Any]:
    """Yield Ray's module while it is connected; the end of the body ends all tasks."""
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unsupported("expected ray, got no such package", hint="pip install 'feedd[ray]'", stage=stage) from error
    with contextlib.redirect_stdout(sys.stderr):  # ray prints about lost nodes, and standard output is for results
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="error")
        try:
            yield ray
        finally:
            ray.shutdown()
