"""A trainer in a process of its own: it logs what it took with its position, and goes on where its log ends.

Each step is one line of the log, written with one call: what was in the batch, and the dataset's state after it was
taken. Whatever the trainer had not written when it was killed, it never had; so the log says what a run trained on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from feedd_client import DaemonUnreachable, FeedDataset, Topology
from tests.fakes.forks import FORKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from multiprocessing.connection import Connection
    from pathlib import Path

URL: Final = "s3://data/train/"
BATCH_SIZE: Final = 4
LIMIT_S: Final = 90.0
_TAIL_BYTES: Final = 1 << 16  # many lines
UNREACHABLE: Final = 3  # exit status: there was no daemon to open with, which is said at once and not waited out

Step = tuple[tuple[int, ...], int]  # labels, and the sum of their pixels


@dataclass(frozen=True, slots=True)
class Job:
    """What a trainer is to do.

    Attributes:
        address: of the daemon.
        log: where its steps are written, and where it finds how far it came.
        epochs: after so many it is done.
        stall_timeout_s: as the dataset's.
        paced: say each word and wait; else run until done, or to the end of the epoch in which it is told to stop.
    """

    address: str
    log: Path
    epochs: int
    paced: bool = True
    stall_timeout_s: float = 120.0


class Line(NamedTuple):
    """One line of the log; that of an epoch's end has no labels."""

    epoch: int
    labels: list[int]
    pixels: int  # their sum
    state: dict[str, Any]


def lines(log: Path) -> list[Line]:
    """Return the whole lines; of a torn last one nothing counts."""
    whole = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [Line(*json.loads(line)) for line in whole]


def epochs(log: Path) -> dict[int, list[Step]]:
    """Return the steps of each epoch, in the order they were taken."""
    found: dict[int, list[Step]] = {}
    for line in lines(log):
        steps = found.setdefault(line.epoch, [])
        if line.labels:
            steps.append((tuple(line.labels), line.pixels))
    return found


class Trainer:
    """A trainer process as the test holds it. A paced one waits at each of its words until it is told to go on.

    Its words: ``opening`` before ``iter()``, ``opened`` after it, ``step`` after each, ``epoch end``, ``done``.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._link, theirs = FORKS.Pipe()
        self._waits = False
        self.process = FORKS.Process(target=_train, args=(job, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def complaints(self) -> str:
        """The end of what the trainers of this log wrote on stderr."""
        path = _complaints(self.job.log)
        return path.read_text()[-3000:] if path.exists() else ""

    def go(self) -> None:
        """Let it go on, without waiting for where it comes to."""
        assert self._waits
        self._waits = False
        self._link.send(None)

    def run_to(self, word: str, times: int = 1) -> None:
        """Let it go on until it has said ``word`` so many times; it waits there."""
        while times:
            if self._waits:
                self.go()
            assert self._link.poll(LIMIT_S), f"no {word!r} within {LIMIT_S:g} s: {self.complaints}"
            try:
                said = self._link.recv()
            except EOFError:
                raise AssertionError(f"the trainer ended before {word!r}: {self.complaints}") from None
            self._waits = True
            times -= said == word

    def run_until(self, met: Callable[[], bool]) -> None:
        """Let it go on until ``met()``, whatever it is doing then."""
        deadline = time.monotonic() + LIMIT_S
        while not met():
            assert time.monotonic() < deadline, self.complaints
            if self._waits:
                self.go()
            if self._link.poll(0.01):
                self._link.recv()
                self._waits = True

    def stop(self) -> None:
        """Have one that is not paced end with its epoch."""
        self._link.send(None)

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        self.process.join(LIMIT_S)
        assert self.process.exitcode is not None, f"the trainer did not end: {self.complaints}"
        return self.process.exitcode

    def finish(self) -> None:
        """Let a paced one do the rest, and see it end well."""
        self.run_to("done")
        self.go()
        assert self.wait() == 0, self.complaints

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.wait()

    def close(self) -> None:
        """End it if it still runs, and let go of it."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self._link.close()


# ---------------------------------------------------------------------- in the trainer's process


def _complaints(log: Path) -> Path:
    return log.with_suffix(".err")


def _train(job: Job, link: Connection) -> None:
    with _complaints(job.log).open("ab") as complaints:
        os.dup2(complaints.fileno(), sys.stderr.fileno())
    try:
        _run(job, link)
    except DaemonUnreachable as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(UNREACHABLE)


def _run(job: Job, link: Connection) -> None:
    dataset = FeedDataset(
        URL,
        batch_size=BATCH_SIZE,
        fields={"cls": "int", "jpg": "image:32x32:random"},
        shuffle=True,
        seed=5,
        prefetch=3,
        address=job.address,
        topology=Topology(),
        reconnect_timeout_s=60,
        stall_timeout_s=job.stall_timeout_s,
    )
    with job.log.open("ab+", buffering=0) as log:
        last = _last(log)
        if last is not None:
            dataset.load_state_dict(last.state)

        def record(epoch: int, labels: list[int], pixels: int = 0) -> None:
            line = json.dumps([epoch, labels, pixels, dataset.state_dict()]).encode() + b"\n"
            assert os.write(log.fileno(), line) == len(line)

        def say(word: str) -> None:
            if job.paced:
                link.send(word)
                link.recv()

        while (epoch := dataset.state_dict()["epoch"]) < job.epochs and (job.paced or not link.poll()):
            say("opening")
            batches = iter(dataset)
            say("opened")
            for batch in batches:
                record(epoch, batch["cls"].tolist(), int(batch["jpg"].long().sum()))
                say("step")
            record(epoch, [])
            say("epoch end")
        say("done")


def _last(log: FileIO) -> Line | None:
    """Return the last line that was written whole, if any, and cut off what was not."""
    start = max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES)
    log.seek(start)
    whole, end, _ = log.read().rpartition(b"\n")
    log.truncate(start + len(whole) + len(end))
    return Line(*json.loads(whole.rpartition(b"\n")[2])) if end else None
