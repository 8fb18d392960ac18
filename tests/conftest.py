"""Guards around every test: a clean environment before it, and nothing left behind after it."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import logging
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import settings

from tests import guards
from tests.budget import CHECK, NIGHTLY, TEST, TIME_LIMITS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator
    from pathlib import Path

FAILED = pytest.StashKey[bool]()

# Time limits of single examples measure the machine, not the code. A fixed seed in CI: a red run can be repeated.
settings.register_profile(
    "feedd", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True, max_examples=TEST
)
settings.register_profile("check", settings.get_profile("feedd"), max_examples=CHECK)
settings.register_profile(
    "nightly", settings.get_profile("feedd"), max_examples=NIGHTLY, derandomize=False, print_blob=True
)
settings.load_profile("feedd")
# A shell's background job ignores Ctrl-C, and so would all its children: tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
faulthandler.enable()  # a crash in native code says where; pytest-timeout dumps all stacks when time is up
gc.disable()  # until all tests are collected: what is imported stays


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lengthen the time limits of tests: see ``TIME_LIMITS``."""
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None and limit.args:
            item.add_marker(pytest.mark.timeout(limit.args[0] * TIME_LIMITS), append=False)


def pytest_collection_finish() -> None:
    """Take what was imported out of the garbage collector's sight: each full collection would walk all of it."""
    gc.freeze()
    gc.set_threshold(10_000)  # seldom: it took a fiftieth of the time of all tests
    gc.enable()


_PEAK = "peak_bytes"
_peaks: list[int] = []  # of pytest-xdist's processes that have ended


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report how much memory this process, or the largest that it started, has had at most."""
    kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_PEAK] = kib * 1024
    else:
        _peaks.append(kib * 1024)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep what one of pytest-xdist's processes has reported."""
    _peaks.append(getattr(node, "workeroutput", {}).get(_PEAK, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the largest of all."""
    terminalreporter.write_line(f"largest process: {max(_peaks, default=0) / 1e6:,.0f} MB")


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Do so once more with what the tests of the file before have imported and kept."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials, profile, endpoint or feedd setting of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "FEEDD_", "SM_", "SLURM_")) or name in {"NOTIFY_SOCKET", "WATCHDOG_USEC"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/aws-config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/aws-credentials")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def forks() -> None:
    """Start what processes are forked from, before a test that forks one takes stock of its descriptors."""
    from tests.fakes.forks import warm_up  # noqa: PLC0415 - only the tests with such processes pay for it

    warm_up()


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummy credentials, for tests that talk to an S3 server of their own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself failed: what it then leaves behind is a consequence, not news."""
    report = yield
    if report.when == "call" and not report.passed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def _real_cuda_runs() -> None:
    """Start CUDA where there is a device: its driver keeps descriptors from then on, which no test leaves behind."""
    import torch  # noqa: PLC0415 - most tests need none

    if torch.cuda.is_available():
        torch.zeros(1).pin_memory().to("cuda").cpu()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread, child process, descriptor or task outlives the test that made it."""
    before = guards.snapshot()
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_no_task_left")
    yield
    if not request.node.stash.get(FAILED, False):
        leaks = guards.leaks_since(before)
        assert not leaks, f"left behind: {leaks}"


@pytest_asyncio.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Every task started by an asynchronous test has ended when the test ends."""
    before = asyncio.all_tasks()
    yield
    pending = asyncio.all_tasks() - before - {asyncio.current_task()}
    if pending:  # a task that was just cancelled may need one more turn of the loop
        _, pending = await asyncio.wait(pending, timeout=0.5)
    if not request.node.stash.get(FAILED, False):
        assert not pending, f"tasks left running: {sorted(map(repr, pending))}"


@pytest_asyncio.fixture
async def no_blocked_loop() -> AsyncIterator[None]:
    """Fail when one callback holds the event loop for 10 s: a busy machine may stop any for a second or two."""
    loop = asyncio.get_running_loop()
    slow: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: slow.append(record.getMessage())  # type: ignore[method-assign]  # one sink, here
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    loop.slow_callback_duration = 10.0
    loop.set_debug(True)
    yield
    loop.set_debug(False)
    logger.removeHandler(handler)
    blocked = [line for line in slow if line.startswith("Executing")]
    assert not blocked, blocked


@pytest.fixture
def short_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a short path: Unix socket addresses end at 107 bytes."""
    import tempfile  # noqa: PLC0415 - only the few tests with sockets pay for it
    from pathlib import Path as _Path  # noqa: PLC0415 - see above

    with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp") as name:
        yield _Path(name)
