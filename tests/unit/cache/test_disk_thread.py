"""Disk work off the loop: in order, to the end, and nothing left at close."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from feedd.cache.directory import DiskThread
from tests.budget import PATIENT_S


async def test_changes_run_in_the_order_handed_over() -> None:
    """A posted removal is done before anything handed over later, whoever waits for which."""
    seen: list[int] = []
    disk = DiskThread(seen.append)  # type: ignore[arg-type]  # nothing fails here
    go = threading.Event()
    disk.post(go.wait, 20)
    for number in range(5):
        disk.post(seen.append, number)
    last = asyncio.ensure_future(disk.change(seen.append, 5))
    await asyncio.sleep(0)
    go.set()
    await last
    assert seen == [0, 1, 2, 3, 4, 5]
    await disk.close(20.0)


async def test_cancelled_wait_does_not_cancel_the_job() -> None:
    """A job handed over runs although nobody waits for it any more: what follows it can rely on it."""
    seen: list[str] = []
    disk = DiskThread(lambda error: seen.append(str(error)))
    go = threading.Event()
    disk.post(go.wait, 20)
    waiting = asyncio.ensure_future(disk.change(seen.append, "done"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go.set()
    await disk.change(lambda: None)
    assert seen == ["done"]
    await disk.close(20.0)


async def test_the_error_of_an_abandoned_job_is_no_defect() -> None:
    """The error of a job whose caller was cancelled is not logged as an exception that nothing retrieved."""
    found: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    disk = DiskThread(found.append)
    for begin in (disk.change, disk.look):
        go = threading.Event()

        def fail(go: threading.Event = go) -> None:
            go.wait(PATIENT_S)
            raise OSError("the disk is gone")

        waiting = asyncio.ensure_future(begin(fail))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        go.set()
    await disk.close(PATIENT_S)
    gc.collect()
    assert found == []


async def test_looking_does_not_wait_for_changes() -> None:
    """A slow change does not hold up a look."""
    disk = DiskThread(lambda _: None)
    go = threading.Event()
    slow = asyncio.ensure_future(disk.change(go.wait, 20))
    assert await disk.look(lambda: "seen") == "seen"
    assert not slow.done()
    go.set()
    await slow
    await disk.close(20.0)


async def test_failures_are_reported_or_raised() -> None:
    """A failed job raises where it is awaited and is reported where it is not."""
    errors: list[BaseException] = []
    disk = DiskThread(errors.append)
    with pytest.raises(ZeroDivisionError):
        await disk.change(lambda: 1 // 0)
    disk.post(lambda: 1 // 0)
    await disk.change(lambda: None)
    await asyncio.sleep(0)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    await disk.close(20.0)


async def test_close_finishes_what_was_handed_over() -> None:
    """Close returns after all changes, ends the threads, may be repeated; later posts are dropped."""
    seen: list[int] = []
    disk = DiskThread(lambda _: None)
    for number in range(50):
        disk.post(seen.append, number)
    await disk.close(20.0)
    await disk.close(20.0)
    assert seen == list(range(50))
    disk.post(seen.append, 99)
    assert len(seen) == 50
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("feedd-pool-cache-changes", "feedd-pool-cache-looks"))]


async def test_close_does_not_wait_for_a_stuck_disk() -> None:
    """A job that does not end is left behind and reported, instead of holding up the whole shutdown."""
    errors: list[BaseException] = []
    disk = DiskThread(errors.append)
    go = threading.Event()
    disk.post(go.wait, 20)
    await disk.close(0.01)
    assert [type(error) for error in errors] == [TimeoutError]
    go.set()


_ENDS = """
import asyncio, os, sys, time
from feedd.cache.directory import DiskThread
from feedd.cache.watch import Prober

async def main():
    disk, probe = DiskThread(lambda error: None), Prober(lambda: time.sleep(600))
    disk.post(time.sleep, 600)
    assert not await probe.run(0.01)
    await disk.close(0.01)
    probe.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_ends_whose_disk_hangs() -> None:
    """The interpreter does not wait for threads that a disk holds up."""
    done = subprocess.run([sys.executable, "-c", _ENDS], check=False, capture_output=True, text=True, timeout=PATIENT_S)
    assert (done.returncode, done.stderr) == (0, "")
