"""Tests side by side in forked processes: ``python -m pytest -p tests.forked --forks 6``.

The tests are collected once, and processes that run them are forked from there: collecting, and importing what tests
import, takes longer than a tenth of all tests. Each process takes file after file; where no file is left, it takes half
of what another one has left. A process that dies fails the test that it ran, and another one is forked.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import os
import random
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest

from tests.fakes import forks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from multiprocessing.connection import Connection

WORKER: Final = "FORKED_WORKER"
"""Environment variable with the number of the process, from 0 on; elsewhere it is not set."""
_END_S: Final = 20.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forked processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes, where the option says so."""
    count: int = session.config.getoption("--forks")
    if not count or session.config.option.collectonly or session.testsfailed or not session.items:
        return None
    _Run(session, count).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Shares:
    """Which process runs which test: numbers of tests, file by file.

    Slow files wait more than they compute. Half of the processes begin with them, the other half with the others.
    """

    def __init__(self, files: Iterable[str], slow: Sequence[bool], count: int) -> None:
        groups = [[*map(_first, group)] for _, group in itertools.groupby(enumerate(files), key=lambda one: one[1])]
        groups.sort(key=lambda group: not any(slow[number] for number in group))
        self._left = collections.deque(map(collections.deque, groups))
        self._given: list[collections.deque[int]] = [collections.deque() for _ in range(count)]

    def take(self, worker: int) -> int | None:
        """Return the number of the next test for a process; None: there is none."""
        if not self._given[worker]:
            self._given[worker] = self._more(worker)
        return self._given[worker].popleft() if self._given[worker] else None

    def give_back(self, worker: int, tests: Iterable[int]) -> None:
        """Take back tests that a process was given and has not begun."""
        self._given[worker].extendleft(reversed([*tests]))

    def _more(self, worker: int) -> collections.deque[int]:
        if self._left:
            return self._left.pop() if worker % 2 else self._left.popleft()
        longest = max(self._given, key=len)
        return collections.deque(reversed([longest.pop() for _ in range((len(longest) + 1) // 2)]))


def _forks(session: pytest.Session) -> bool:
    return any("forks" in getattr(item, "fixturenames", ()) for item in session.items)


def _first(pair: tuple[int, str]) -> int:
    return pair[0]


@dataclass(eq=False)
class _Worker:
    """A forked process as the one that gives it tests sees it; of its reports it is the node, as pytest-xdist's are.

    Attributes:
        given: numbers of the tests that it has and has not finished.
        told_all: whether it knows that no other test follows.
    """

    number: int
    pid: int
    link: Connection
    given: collections.deque[int] = field(default_factory=collections.deque)
    told_all: bool = False
    _workerinfocache: ClassVar[str] = ""  # said above each failure, where it is not empty

    @property
    def gateway(self) -> SimpleNamespace:
        """Its name."""
        return SimpleNamespace(id=f"process {self.number}")


class _Run:
    """All tests of a session, in processes forked from this one."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._config = session.config
        self._count = count
        items = session.items
        slow = [item.get_closest_marker("slow") is not None for item in items]
        self._shares = Shares([item.nodeid.partition("::")[0] for item in items], slow, count)
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as pytest-xdist does
        self._workers: dict[Connection, _Worker] = {}

    def run(self) -> None:
        """Run them."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # reports of different files alternate
        if _forks(self._session):
            forks.preload()
        try:
            for number in range(self._count):
                self._fork(number)
            while self._workers:
                for link in connection.wait([*self._workers]):
                    self._hear(self._workers[link])  # type: ignore[index]  # one of the keys
        finally:
            self._end()

    def _end(self) -> None:
        """End processes that go on although this one does not: each is given time to end what its test has begun."""
        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGINT)
        until_s = time.monotonic() + _END_S
        for worker in self._workers.values():
            while not os.waitpid(worker.pid, os.WNOHANG)[0]:
                if time.monotonic() > until_s:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.01)

    def _fork(self, number: int) -> None:
        alive = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        assert not alive, f"expected no thread before processes are forked, got {alive}: end what collecting began"
        ours, theirs = Pipe()
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()  # each process captures into a file of its own
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            for link in (ours, *self._workers):
                link.close()
            _be_worker(self._session, number, theirs, self._folder / f"process-{number}")
        _start(capture)
        theirs.close()
        worker = self._workers[ours] = _Worker(number, pid, ours)
        self._give(worker)
        self._give(worker)  # one in advance: what a test sets up stays for the next one that needs it

    def _give(self, worker: _Worker) -> None:
        if worker.told_all:
            return
        stopped = self._session.shouldfail or self._session.shouldstop
        test = None if stopped else self._shares.take(worker.number)
        if test is not None:
            worker.given.append(test)
        worker.told_all = test is None
        with contextlib.suppress(OSError):  # it has just died: that is heard next
            worker.link.send(test)

    def _hear(self, worker: _Worker) -> None:
        try:
            data = worker.link.recv()
        except (EOFError, OSError):
            self._ended(worker)
            return
        hook = self._config.hook
        if data is None:
            item = self._session.items[worker.given.popleft()]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            self._give(worker)
            return
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        self._tell(worker, report)

    def _tell(self, worker: _Worker, report: Any) -> None:
        report.node = worker
        self._config.hook.pytest_runtest_logreport(report=report)

    def _ended(self, worker: _Worker) -> None:
        del self._workers[worker.link]
        worker.link.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.told_all and not worker.given and not code:
            return
        if worker.given:
            item = self._session.items[worker.given.popleft()]
            where, reason = item.location, f"expected the test's process to live, it ended with {code}"
            self._tell(worker, pytest.TestReport(item.nodeid, where, {}, "failed", reason, "call"))
        else:
            self._session.shouldfail = f"process {worker.number} ended with {code}"
        if worker.given:
            self._shares.give_back(worker.number, worker.given)
        if not self._session.shouldfail:
            self._fork(worker.number)


# ---------------------------------------------------------------------- in a forked process


class _Reports:
    """Sends what is reported to the process that asked for it."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config = config
        self._link = link

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send one."""
        self._link.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _be_worker(session: pytest.Session, number: int, link: Connection, folder: Any) -> None:
    """Run the tests that are given, and end this process."""
    code = 1
    try:
        os.environ[WORKER] = str(number)
        random.seed()
        if _forks(session):
            forks.fork_server(link)
        folder.mkdir(exist_ok=True)
        session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]  # as pytest-xdist does
        _report_to(session.config, link)
        _work(session, link)
        code = 0
    except EOFError:  # nobody asks any more
        code = 2
    except BaseException:  # noqa: BLE001 - told, and this process ends here
        traceback.print_exc(file=sys.__stderr__)
    finally:
        with contextlib.suppress(BaseException):
            session._setupstate.teardown_exact(None)  # what a test that was broken off has set up
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)


def _report_to(config: pytest.Config, link: Connection) -> None:
    plugins = config.pluginmanager
    reporter: Any = plugins.get_plugin("terminalreporter")
    if reporter is not None:  # pytest-timeout writes stacks to its terminal
        plugins.unregister(reporter)
        plugins.register(SimpleNamespace(_tw=reporter._tw), "terminalreporter")
    plugins.register(_Reports(config, link))
    _start(plugins.get_plugin("capturemanager"))


def _start(capture: Any) -> None:
    """Capture while tests run only, as pytest does."""
    capture.start_global_capturing()
    capture.suspend_global_capture()


def _work(session: pytest.Session, link: Connection) -> None:
    test = link.recv()
    while test is not None:
        following = link.recv()
        item = session.items[test]
        after = None if following is None else session.items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        link.send(None)
        test = following
