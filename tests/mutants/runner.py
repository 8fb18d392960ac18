"""Runs collected tests in forks of a pytest process, each with the code of one function exchanged.

No file changes, and imports and collection happen once. Processes that a test starts afresh do not have the change.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.mutations import Key, Mutant, changed, find, places
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType, FrameType

_LIMIT_S: Final = 120.0
_ARGS: Final = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=check"),
    *("-m", "not slow and not gpu and not nightly and not bench"),
)


def run(work: Callable[[Forks], None], paths: Sequence[str]) -> None:
    """Collect the tests of these files or folders, and call ``work`` in place of running them."""
    os.environ["CI"] = "1"  # Hypothesis then tries the same examples each time
    pytest.main([*_ARGS, *paths], plugins=[_Plugin(work)])


class _Plugin:
    def __init__(self, work: Callable[[Forks], None]) -> None:
        self._work = work

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._work(Forks(session.items))
        return True


class Forks:
    """Runs collected tests in forks of this process.

    Attributes:
        tests: by their ids.
    """

    def __init__(self, items: list[pytest.Item]) -> None:
        self.tests = {item.nodeid: item for item in items}
        self._functions: dict[Key, list[FunctionType]] = defaultdict(list)

    def _functions_of(self, key: Key) -> list[FunctionType]:
        """Return the function objects with this code; those that tests import later are imported for it."""
        if key not in self._functions:
            importlib.import_module(".".join(key[0].removesuffix(".py").removeprefix("client/").split("/")))
            gc.unfreeze()  # else the collector would not show what was imported before
            for one in gc.get_objects():
                if type(one) is FunctionType and _key(one.__code__) == key:  # isinstance would run foreign code
                    self._functions[key].append(one)
            gc.freeze()
        return self._functions[key]

    def first_failure(self, ids: Sequence[str], mutant: Mutant | None = None, limit_s: float = _LIMIT_S) -> str | None:
        """Return the first of these tests that fails with the mutant, "" if none does.

        None stands for not known: they did not end in time, or the mutant has no place.
        """
        place = None if mutant is None else find(mutant)
        if mutant is not None and (place is None or not self._functions_of(place.key)):
            return None

        def work() -> str:
            if mutant is not None and place is not None:
                for function in self._functions_of(place.key):
                    function.__code__ = changed(mutant, place, function.__code__.co_filename)
            return next((name for _, name, passed in self._reports(ids) if not passed), "")

        found: str | None = _forked(work, limit_s)
        return found

    def _reports(self, ids: Sequence[str]) -> Iterator[tuple[float, str, bool]]:
        """Run tests; yield how long each took, its name, and whether it did not fail."""
        items = [self.tests[name] for name in ids]
        for item, following in zip(items, [*items[1:], None], strict=True):
            began_s = time.perf_counter()
            reports = runtestprotocol(item, log=False, nextitem=following)
            yield time.perf_counter() - began_s, item.nodeid, not any(report.failed for report in reports)

    def covering(self, ids: Sequence[str], limit_s: float) -> dict[Key, list[str]]:
        """Return the tests that run each function of the product and pass, the fastest first.

        Tests that have not begun after ``limit_s`` of CPU time are left out.
        """
        covered: dict[Key, list[str]] = defaultdict(list)
        for _, name, keys in sorted(_forked(lambda: self._coverage(ids, limit_s), limit_s * 20) or []):
            for path, function, line in keys:
                covered[path, function, line].append(name)
        return covered

    def _coverage(self, ids: Sequence[str], limit_s: float) -> list[tuple[float, str, list[Key]]]:
        seen: set[CodeType] = set()
        product = {place.key for place in places()}

        def called(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                seen.add(frame.f_code)

        threading.setprofile(called)
        sys.setprofile(called)
        found = []
        for duration_s, name, passed in self._reports(ids):
            if passed:
                found.append((duration_s, name, [key for code in seen.copy() if (key := _key(code)) in product]))
            seen.clear()
            if time.process_time() > limit_s:
                break
        return found


def _key(code: CodeType) -> Key:
    return code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname, code.co_firstlineno


def _forked(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what ``work`` returns in a fork, None if it fails or takes too long; end all that it started."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            answer = json.dumps(work()).encode() + b"\n"
            while answer:
                answer = answer[os.write(writer, answer) :]
        finally:
            os._exit(0)  # nothing that the forked process would do at its end may happen twice
    os.close(writer)
    try:
        return _line(reader, time.monotonic() + limit_s)
    finally:
        os.close(reader)
        for end, whom in ((os.killpg, child), (os.kill, child)):
            with contextlib.suppress(ProcessLookupError):
                end(whom, signal.SIGKILL)
        os.waitpid(child, 0)


def _line(reader: int, deadline_s: float) -> Any:
    found = b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline_s - time.monotonic()))
        part = os.read(reader, 1 << 20) if ready else b""
        if not part:
            return None
        found += part
    return json.loads(found)
