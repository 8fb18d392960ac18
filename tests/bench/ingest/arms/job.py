"""What every contender is asked to do, and the figures it gives back. Standard library only: peers run it too."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Part:
    """One range of one object, ``end`` excluded."""

    key: str
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Length of the range."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Job:
    """Objects to bring to a folder.

    Attributes:
        endpoint: URL of the store; empty: the real one.
        region: of the bucket.
        bucket: where the objects are.
        objects: key and bytes of each.
        folder: on tmpfs; becomes the cache, or holds the files.
        parts_in_flight: ranges asked for at one time.
        part_bytes: length of a range.
        ca_file: certificates to trust; empty: the system's.
        recycled: do it once untimed, and then over the same files, whose pages are there already.
        own: the contender's own settings.
    """

    endpoint: str
    region: str
    bucket: str
    objects: tuple[tuple[str, int], ...]
    folder: Path
    parts_in_flight: int
    part_bytes: int
    ca_file: str
    recycled: bool
    own: dict[str, Any]

    @classmethod
    def from_arguments(cls) -> Job:
        """Read the first argument of the process."""
        found = json.loads(sys.argv[1])
        return cls(
            found["endpoint"],
            found["region"],
            found["bucket"],
            tuple((key, size_bytes) for key, size_bytes in found["objects"]),
            Path(found["folder"]),
            found["parts_in_flight"],
            found["part_bytes"],
            found["ca_file"],
            found["recycled"],
            found.get("own", {}),
        )

    def measure(self, transfer: Callable[[], None]) -> dict[str, Any]:
        """Run the transfer and return its figures."""
        if self.recycled:
            transfer()
        with timed() as row:
            transfer()
        return row

    def path(self, key: str) -> Path:
        """Return where a peer puts an object."""
        return self.folder / key.replace("/", "-")

    def parts(self) -> Iterator[Part]:
        """Yield the ranges of all objects, one object after the other."""
        for key, size_bytes in self.objects:
            for start in range(0, size_bytes, self.part_bytes):
                yield Part(key, start, min(start + self.part_bytes, size_bytes))

    def allocate(self, key: str, size_bytes: int) -> int:
        """Open an object's file, all its space allocated as in the cache; return the descriptor."""
        fd = os.open(self.path(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(fd, 0, size_bytes)
        return fd

    @contextlib.contextmanager
    def descriptors(self) -> Iterator[dict[str, int]]:
        """Allocate all files; give their descriptors by key; close them."""
        found = {key: self.allocate(key, size_bytes) for key, size_bytes in self.objects}
        try:
            yield found
        finally:
            for fd in found.values():
                os.close(fd)

    @contextlib.contextmanager
    def mappings(self) -> Iterator[dict[str, memoryview]]:
        """Allocate all files; give their writable mappings by key; unmap them."""
        with self.descriptors() as fds, contextlib.ExitStack() as stack:
            found = {}
            for key, size_bytes in self.objects:
                mapping = stack.enter_context(contextlib.closing(mmap.mmap(fds[key], size_bytes)))
                found[key] = stack.enter_context(memoryview(mapping))
            yield found

    def in_threads(self, work: Callable[[Iterator[Part]], None]) -> None:
        """Let ``parts_in_flight`` threads take parts until none is left; the first error is raised."""
        todo, failures = deque(self.parts()), list[BaseException]()

        def take() -> Iterator[Part]:
            while todo and not failures:
                try:
                    yield todo.popleft()
                except IndexError:
                    return

        def run() -> None:
            try:
                work(take())
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the threads
                failures.append(error)

        threads = [threading.Thread(target=run) for _ in range(self.parts_in_flight)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def write_in_threads(self, work: Callable[[dict[str, int], Iterator[Part]], None]) -> None:
        """Allocate all files and let threads fill them, as ``in_threads`` does; ``work`` gets their descriptors."""
        with self.descriptors() as fds:
            self.in_threads(lambda parts: work(fds, parts))


def _cpu_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextlib.contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Measure what happens within: seconds, and CPU seconds of this process and the children it has waited for."""
    row: dict[str, Any] = {}
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin_s, begin_cpu_s = time.perf_counter(), _cpu_s()
    yield row
    row["wall_s"] = time.perf_counter() - begin_s
    row["cpu_s"] = _cpu_s() - begin_cpu_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    row["user_s"] = after.ru_utime - before.ru_utime
    row["system_s"] = after.ru_stime - before.ru_stime


def finish(job: Job, row: dict[str, Any]) -> None:
    """Say how it went, on the last line of output; where the files are unless the row says so itself."""
    row.setdefault("files", [[key, str(job.path(key)), 0] for key, _ in job.objects])
    os.set_blocking(sys.stdout.fileno(), True)  # a pipe that does not block takes 64 KiB at a time
    rest = memoryview((json.dumps(row) + "\n").encode())
    while rest:  # unbuffered, ``sys.stdout`` would drop what one call does not write
        rest = rest[os.write(sys.stdout.fileno(), rest) :]
