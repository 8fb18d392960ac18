"""Sizes of the house beside their goals, and how many files and functions a batch and an open run through.

``python -m tests.tidy.house`` prints them. The files and functions are those of the daemon's process, decode workers
left out, over local tars: one session of two fields, batches of 32 samples, one worker. The objects that a byte range
passes are those whose coroutines wait for it: from a shard that is acquired to the connection that receives it.
``--sizes`` prints only what is counted in the sources, ``--files`` also the files that run, ``--single`` also the short
modules that one other module of their folder imports.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import itertools
import json
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from feedd.clock import SystemClock
from feedd.config import load
from feedd.daemon.wiring import open_pipeline
from feedd.observe.recorder import NullRecorder
from feedd.values import Cursor, Produced, Topology
from feedd.workers import autoscaler
from tests.fakes.s3.faults import Fault
from tests.fakes.s3.server import S3Server
from tests.fakes.specs import open_spec
from tests.fakes.tars import tar_bytes
from tests.tidy.tree import ROOT, size, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from tests.tidy.tree import Source

_PRODUCT = str(ROOT / "feedd") + "/"
_WAY: Final = {"cache", "fetch", "flow", "tables"}
_ASIDE: Final = {"DiskWatch", "S3Checksums", "ClosingSession"}  # watch the disk, ask for a checksum
_WAIT_S: Final = 20.0
_LOOKS: Final = 10
_COUNTS: Final = "--counts"
_SHARDS, _SAMPLES, _BATCH_SIZE = 4, 96, 32
GOALS: Final = {
    "files": 400,
    "lines": 80_000,
    "functions per 1,000 lines": 55,
    "classes per 1,000 lines": 10,
    "files of a warm batch": 35,
    "files of a cold open": 90,
    "objects of a byte range": 12,
    "files that name an option": 3,
    "test files": 450,
    "lines of tests": 80_000,
}
"""What the plan of the house names. An option may have four files: three that name it, and its document."""
OPTIONS: Final = ("decoded_cache", "samples_per_epoch")  # of FeedDataset: names that mean nothing else
_SHORT_LINES: Final = 200


@dataclass
class Trace:
    """What ran.

    Attributes:
        codes: of functions of the product.
    """

    codes: set[CodeType] = field(default_factory=set)

    @property
    def files(self) -> set[str]:
        """Their files, below ``feedd``."""
        return {code.co_filename.removeprefix(_PRODUCT) for code in self.codes}


class Tracer:
    """Notes every function of the product that is called in any thread begun since ``start``."""

    def __init__(self) -> None:
        self._trace = Trace()

    def start(self) -> None:
        """Begin."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def stop(self) -> None:
        """End."""
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Note what is called meanwhile."""
        before, self._trace = self._trace, Trace()
        try:
            yield self._trace
        finally:
            self._trace = before

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # and not the body of a module or of a class
        if event == "call" and is_function and code.co_filename.startswith(_PRODUCT):
            self._trace.codes.add(code)


@functools.cache
def sizes() -> dict[str, float]:
    """Return what is counted in the sources of the daemon and the client, and in the tests without the benches."""
    product = [source for source in sources() if source.is_product]
    tests = [source for source in sources() if source.path.parts[0] == "tests" and source.path.parts[1] != "bench"]
    lines = sum(source.line_count for source in product)
    lengths = sorted(size(node) for source in product for node in source.functions())
    classes = sum(1 for source in product for _ in source.classes())
    return {
        "files": len(product),
        "lines": lines,
        "functions": len(lengths),
        "functions per 1,000 lines": round(len(lengths) / lines * 1000, 1),
        "lines of 95 % of functions": lengths[int(0.95 * len(lengths))],
        "classes": classes,
        "classes per 1,000 lines": round(classes / lines * 1000, 1),
        "short modules with one importer": len(single_importers()),
        "files that name an option": max(sum(1 for one in product if _names(one, option)) for option in OPTIONS),
        "test files": len(tests),
        "lines of tests": sum(source.line_count for source in tests),
    }


def _names(source: Source, option: str) -> bool:
    """Tell whether code of a file names an option: as a name, attribute, argument, or text of its own."""
    return any(
        option in {getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "arg", None)}
        or (isinstance(node, ast.Constant) and node.value == option)
        for node in source.nodes
    )


def single_importers() -> dict[str, str]:
    """Return modules of fewer than 200 lines that one file imports, of the same folder, with that file."""
    by_name = {_dotted(source.path): source for source in sources() if source.is_product}
    importers: dict[str, set[str]] = {name: set() for name in by_name}
    for source in sources():
        if source.is_product:
            for name in _imported(source) & importers.keys():
                importers[name].add(str(source.path))
    found = {}
    for name, users in importers.items():
        path = by_name[name].path
        if len(users) == 1 and path.name != "__init__.py" and by_name[name].line_count < _SHORT_LINES:
            (user,) = users
            if Path(user).parent == path.parent:
                found[str(path)] = user
    return found


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removeprefix("client.").removesuffix(".__init__")


def _imported(source: Source) -> set[str]:
    """Return the names that a file imports, and what they may be imported from."""
    found: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = ".".join(_dotted(source.path).split(".")[: -node.level]) if node.level else ""
            base = ".".join(filter(None, (folder, node.module)))
            found.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return found


def _data(folder: Path) -> None:
    for shard in range(_SHARDS):
        numbers = range(shard * 1000, shard * 1000 + _SAMPLES)
        samples = [(f"{number:06}", {"cls": b"%d" % number, "bin": bytes(100)}) for number in numbers]
        (folder / f"{shard}.tar").write_bytes(tar_bytes(samples))


async def _walk(folder: Path, tracer: Tracer) -> dict[str, Trace]:
    settings = {"cache.dir": str(folder / "cache"), "cache.size": "64MiB", "decode.workers": "1"}
    config = load({name: (value, "the bench") for name, value in settings.items()}, {}).config
    data = folder / "data"
    data.mkdir()
    _data(data)
    spec = open_spec(
        urls=(f"file://{data}/",),
        fields=(("cls", "int"), ("bin", "tensor:uint8:100")),
        batch_size=_BATCH_SIZE,
        topology=Topology(),
        shuffle=True,
        window_shards=4,
    )
    found: dict[str, Trace] = {}
    async with open_pipeline(config, NullRecorder(), SystemClock()) as pipeline:
        with tracer.traced() as found["open, cold"]:
            session = await pipeline.open(spec)
        try:
            names = ["first batch", "batch", "batch", "warm batch"]
            for step, name in enumerate(names):
                with tracer.traced() as found[name]:
                    made = await session.produce(Cursor(0, step))
                    assert isinstance(made, Produced)
                    session.release(made.slot)
        finally:
            await session.close()
        with tracer.traced() as found["open again"]:
            session = await pipeline.open(spec)
        await session.close()
    del found["batch"]
    return found


def walk() -> dict[str, Trace]:
    """Return what ran for each step of a session."""
    with tempfile.TemporaryDirectory(prefix="feedd-house-") as folder:
        tracer = Tracer()
        tracer.start()
        try:
            with patch.object(autoscaler, "PERIOD_S", 3600.0):  # a slow machine would count what this timer calls
                return asyncio.run(_walk(Path(folder), tracer))
        finally:
            tracer.stop()


def file_counts() -> dict[str, int]:
    """Return how many files ran for each step, counted in a new process: other tests leave threads and caches."""
    command = [sys.executable, "-m", "tests.tidy.house", _COUNTS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


async def _range_way(folder: Path, url: str) -> list[str]:
    settings = {"cache.dir": str(folder), "cache.size": "64MiB", "decode.workers": "1"}
    access = json.dumps({"*": {"endpoint_url": url, "anonymous": True}})
    config = load({name: (value, "the sizes") for name, value in settings.items()}, {"FEEDD_S3": access}).config
    async with open_pipeline(config, NullRecorder(), SystemClock()) as pipeline:
        (ref,) = await pipeline.stages.sources.resolve(["s3://bucket/shard.tar"])
        acquired = asyncio.create_task(pipeline.stages.cache.acquire([ref]))
        try:
            async with asyncio.timeout(_WAIT_S):
                fetching: Any = pipeline.stages.sources.work_loop
                loops = asyncio.get_running_loop(), fetching._to_work._loop
                found, same_count = _waiting(loops), 0
                while "Connection" not in found or same_count < _LOOKS:
                    await asyncio.sleep(0.05)  # no other part is on its way any more once all looks see the same
                    before, found = found, _waiting(loops)
                    same_count = same_count + 1 if found == before else 0
        finally:
            acquired.cancel()
            await asyncio.wait([acquired])
    return found


def _waiting(loops: Iterable[asyncio.AbstractEventLoop]) -> list[str]:
    """Return the classes of the objects of the way's rooms in whose coroutines tasks of these loops wait."""
    found: dict[int, str] = {}
    for task in itertools.chain.from_iterable(map(asyncio.all_tasks, loops)):
        inner: Any = task.get_coro()
        while inner is not None:
            frame = getattr(inner, "cr_frame", None)
            path = "" if frame is None else frame.f_code.co_filename.removeprefix(_PRODUCT)
            if frame is not None and path.partition("/")[0] in _WAY and "self" in frame.f_locals:
                owner = frame.f_locals["self"]
                found.setdefault(id(owner), type(owner).__name__)
            inner = getattr(inner, "cr_await", None)
    return [name for name in found.values() if name not in _ASIDE]


def range_way() -> list[str]:
    """Return the classes of the objects that a byte range passes, from its acquirer to its connection."""
    with tempfile.TemporaryDirectory(prefix="feedd-house-") as folder, S3Server() as server:
        server.put("bucket", "shard.tar", bytes(3 << 20))
        server.script("bucket", "shard.tar", always=Fault(hang=True))
        return asyncio.run(_range_way(Path(folder), server.url))


def main() -> None:
    """Print the sizes."""
    if _COUNTS in sys.argv:
        print(json.dumps({name: len(trace.files) for name, trace in walk().items()}))
        return
    found = sizes()
    if "--sizes" not in sys.argv:
        traces, way = walk(), range_way()
        found["files of a cold open"] = len(traces["open, cold"].files)
        found["files of a warm batch"] = len(traces["warm batch"].files)
        found["objects of a byte range"] = len(way)
        print(f"a byte range passes {', '.join(way)}")
        for name, trace in traces.items():
            print(f"{name}: {len(trace.files)} files, {len(trace.codes)} functions")
            if "--files" in sys.argv:
                print("   ", "\n    ".join(sorted(trace.files)))
    if "--single" in sys.argv:
        print("\n".join(f"{path} is imported by {user} only" for path, user in single_importers().items()))
    for name, figure in found.items():
        print(f"{name:34} {figure:>9,}", f"   goal {GOALS[name]:,}" if name in GOALS else "")


if __name__ == "__main__":
    main()
