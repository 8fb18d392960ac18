"""``feedd demo``: trains a small model end to end on an embedded S3 server or on the user's data.

Servers, daemons and trainers are real processes, which end with this one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from feedd import metrics
from feedd.cli.processes import start, start_daemon, until_ready
from feedd.cli.report import print_table
from feedd.errors import BadConfig, FeeddError
from feedd.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.cli.demo_data import DataOptions, Target

_RANKS_WITH_NODES: Final = 2  # ranks per node when several nodes are shown
_BUCKET, _PREFIX = "feedd-demo", "train/"
_KEPT: Final = Path("feedd-demo", "train")  # below the current directory
_HOME_BYTES_MAX: Final = 88  # a socket's path may have 101 bytes, less "/node-15.sock"
_EMBEDDED: Final = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def demo(
    url: Annotated[str | None, typer.Option("--url", help="Data: s3://bucket/prefix/. Default: generated.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="Number of nodes to simulate.")] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1, max=100, help="Number of passes over the data.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the generated shards in ./feedd-demo/train.")] = False,  # noqa: FBT002 - a flag is a flag
) -> None:
    """Train a small model end to end: S3 server, daemons and trainers as real processes on this machine."""
    needed = ("feedd_client", "torch", *(() if url else ("moto", "flask", "flask_cors")))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise BadConfig(
            f"the demo needs {', '.join(missing)}, which is not installed here",
            hint="run make demo in a checkout, or pip install 'feedd[demo]'",
            stage="demo",
        )
    run = _Demo(url or None, nodes, epochs, _KEPT.absolute() if keep else None)
    try:
        done = asyncio.run(run.interruptible())
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("interrupted; all processes were stopped")
        raise typer.Exit(130) from None
    fell = done[-1].loss < done[0].loss
    _show(done)
    if not url and len(done) > 1:
        typer.echo("the loss fell" if fell else "the loss did not fall")
    typer.echo("\ntry next:\n" + "\n".join(f"  {command}  # {what}" for command, what in run.next_steps()))
    raise typer.Exit(0 if url or len(done) == 1 or fell else 1)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What one epoch took.

    Attributes:
        ranks: the figures of each rank's trainer.
        nodes: GETs, bytes from the store, hits and misses of each node's daemon.
    """

    ranks: Sequence[dict[str, Any]]
    nodes: Sequence[Sequence[float]]

    @property
    def samples(self) -> int:
        """Samples of all ranks."""
        return sum(rank["samples"] for rank in self.ranks)

    @property
    def loss(self) -> float:
        """Mean loss of all samples."""
        return float(sum(rank["loss"] * rank["samples"] for rank in self.ranks) / max(self.samples, 1))

    def row(self) -> tuple[str, ...]:
        """Return what the table of trainers shows; the slowest rank decides the duration."""
        waits = sum(rank["wait_s"] / rank["seconds"] for rank in self.ranks) / len(self.ranks)
        return (
            f"{self.loss:.3f}",
            str(self.samples),
            f"{self.samples / max(rank['seconds'] for rank in self.ranks):.0f}",
            format_duration(max(rank["first_batch_s"] for rank in self.ranks)),
            f"{waits:.1%}",
        )


@dataclass(frozen=True, slots=True)
class _Demo:
    """One run. All files are in one temporary directory; only ``keep`` leaves files behind.

    Attributes:
        url: URL of the user's data; None: generated data on an embedded server.
        node_count: daemons, each a node.
        epochs: passes over the data.
        keep: absolute path of a folder for copies of the generated shards; None: they are deleted with the server.
    """

    url: str | None
    node_count: int
    epochs: int
    keep: Path | None

    def next_steps(self) -> list[tuple[str, str]]:
        """Return commands to try next, each with its purpose."""
        from feedd.cli.demo_data import CLASS_COUNT  # noqa: PLC0415 - needs OpenCV

        steps = []
        if self.url is None and self.keep is not None:
            train = f"python -m feedd_client.demo --url {self.keep}/ --classes {CLASS_COUNT}"
            steps += [(f"feedd plan {_KEPT}/ --nodes 4", "which node gets which shards")]
            steps += [(f"feedd index {_KEPT}/", "count samples, so that len(dataset) works")]
            steps += [(train, "train on the same shards; starts a daemon by itself")]
        elif self.url is None:
            steps += [("feedd demo --keep", f"run the demo again, and keep the shards in {_KEPT}")]
        if self.node_count == 1:
            steps += [("feedd demo --nodes 2", "two daemons as two nodes, two ranks each")]
        if self.url is None:
            steps += [("feedd demo --url s3://my-bucket/train/", "your own data")]
        return [*steps, ("feedd check", "check this machine and the configuration")]

    async def interruptible(self) -> list[_Epoch]:
        """Run until all epochs are done; a signal cancels the run."""
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        async with AsyncExitStack() as stack:
            return await self._run(stack)

    async def _run(self, stack: AsyncExitStack) -> list[_Epoch]:
        from feedd.cli.demo_data import DataOptions, Target  # noqa: PLC0415 - needs OpenCV

        home = _folder(stack)
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "TORCHINDUCTOR_CACHE_DIR": str(home / "torch")}
        env.pop("FEEDD_ADDRESS", None)
        options = None if self.url else DataOptions()
        url = self.url or f"s3://{_BUCKET}/{_PREFIX}"
        if options is not None:
            endpoint = await _start_server(stack, home)
            env |= {"AWS_ENDPOINT_URL": endpoint, **_EMBEDDED}
            size_bytes = await write_data(options, Target(endpoint, _BUCKET, _PREFIX, self.keep), Console())
            shards = format_count(options.shard_count, "shard")
            typer.echo(f"{shards}, {format_size(size_bytes)} at {url} on {endpoint}")
        addresses = [await _start_node(stack, home, index, env) for index in range(self.node_count)]
        trainers = await self._start_trainers(stack, addresses, url, env)
        samples = None if options is None else options.shard_count * options.samples_per_shard
        done = [await _epoch(number, addresses, trainers, samples) for number in range(self.epochs)]
        await asyncio.gather(*(trainer.done() for trainer in trainers))
        return done

    async def _start_trainers(
        self, stack: AsyncExitStack, addresses: Sequence[str], url: str, env: dict[str, str]
    ) -> list[_Trainer]:
        from feedd.cli.demo_data import CLASS_COUNT  # noqa: PLC0415 - needs OpenCV

        ranks = _RANKS_WITH_NODES if self.node_count > 1 else 1
        port, world_size = _free_port(), self.node_count * ranks
        arguments = ["--url", url, "--epochs", str(self.epochs), "--lockstep"]
        arguments += ["--classes", str(CLASS_COUNT)] if self.url is None else []
        trainers = []
        for rank in range(world_size):
            place = {
                "FEEDD_ADDRESS": addresses[rank // ranks],
                "WORLD_SIZE": str(world_size),
                "RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank % ranks),
                "GROUP_RANK": str(rank // ranks),
                "GROUP_WORLD_SIZE": str(self.node_count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            trainers.append(_Trainer(rank, await start(stack, "feedd_client.demo", arguments, env | place)))
        return trainers


class _Trainer:
    """One rank's process. It prints a JSON line per event, and reads a line per permission to continue."""

    def __init__(self, rank: int, process: asyncio.subprocess.Process) -> None:
        self._rank = rank
        self._process = process
        self.samples = 0

    async def ready(self) -> None:
        """Wait until the rank is at the start of an epoch."""
        while (await self._event())["event"] != "ready":
            pass

    async def epoch(self, moved: Callable[[], None]) -> dict[str, Any]:
        """Let the rank train one epoch; return its figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()
        self.samples = 0
        while True:
            event = await self._event()
            self.samples = int(event.get("samples", self.samples))
            moved()
            if event["event"] == "epoch":
                return event

    async def done(self) -> None:
        """Wait until the process ends with exit code 0."""
        if await self._process.wait() != 0:
            raise self._failure()

    async def _event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            raise self._failure()
        event: dict[str, Any] = json.loads(line)
        return event

    def _failure(self) -> FeeddError:
        return FeeddError(f"trainer of rank {self._rank} ended with exit code {self._process.returncode}", stage="demo")


async def _epoch(number: int, addresses: Sequence[str], trainers: Sequence[_Trainer], samples: int | None) -> _Epoch:
    """Let all ranks train one epoch."""
    with _progress(Console()) as progress:
        bar = progress.add_task(f"epoch {number}", total=samples)
        before = [await _counters(address) for address in addresses]
        await asyncio.gather(*(trainer.ready() for trainer in trainers))

        def moved() -> None:
            progress.update(bar, completed=sum(trainer.samples for trainer in trainers))

        ranks = await asyncio.gather(*(trainer.epoch(moved) for trainer in trainers))
        after = [await _counters(address) for address in addresses]
    grown = [[new - old for old, new in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
    return _Epoch(ranks, grown)


async def _counters(address: str) -> list[float]:
    """Return a daemon's GETs, bytes from the store, hits and misses."""
    from feedd.diagnosis.node import Look  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.serve.admin_client import daemon_at  # noqa: PLC0415 - see above
    from feedd.wire import feedd_pb2 as pb  # noqa: PLC0415 - see above

    async with daemon_at(address) as daemon:
        look = Look(0.0, [pb.ObserveResponse(stats=await daemon.stats())])
    others = metrics.SOURCE_BYTES, metrics.CACHE_HITS, metrics.CACHE_MISSES
    return [look.total(metrics.SOURCE_REQUESTS, op="read"), *map(look.total, others)]


def _folder(stack: AsyncExitStack) -> Path:
    """Return a temporary folder with a short path: ``TMPDIR`` may be long, and a socket's path has 101 bytes."""
    home = Path(tempfile.mkdtemp(prefix="feedd-demo-"))
    if len(os.fsencode(home)) > _HOME_BYTES_MAX:
        home.rmdir()
        home = Path(tempfile.mkdtemp(prefix="feedd-demo-", dir="/tmp"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    return home


async def _start_server(stack: AsyncExitStack, home: Path) -> str:
    """Start moto's S3 server, which keeps objects in memory, as a separate process; return its endpoint."""
    port, log = _free_port(), home / "s3.log"
    process = await start(stack, "moto.server", ["-H", "127.0.0.1", "-p", str(port)], os.environ, log)

    async def answers() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    await until_ready(process, log, "the embedded S3 server", answers)
    return f"http://127.0.0.1:{port}"


async def _start_node(stack: AsyncExitStack, home: Path, index: int, env: dict[str, str]) -> str:
    """Start a daemon with its own socket and cache; return its address when it is ready."""
    address, log = f"unix://{home}/node-{index}.sock", home / f"node-{index}.log"
    arguments = ["--cache-dir", str(home / f"cache-{index}"), "--cache-size", "4GiB"]
    await start_daemon(stack, f"daemon {index}", address, arguments, env, log)
    return address


def _free_port() -> int:
    """Return a TCP port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def write_data(options: DataOptions, target: Target, console: Console) -> int:
    """Write the generated shards; return their bytes. If it is cancelled, the shard in progress is still written."""
    from feedd.cli import demo_data  # noqa: PLC0415 - needs OpenCV
    from feedd.flow.pools import CPU  # noqa: PLC0415 - as the above
    from feedd.flow.tasks import run_to_end  # noqa: PLC0415 - as the above

    with _progress(console) as progress:
        advance = partial(progress.advance, progress.add_task("writing shards", total=options.shard_count))
        stop = threading.Event()
        # A thread inside OpenCV at process exit would abort the process, so wait for the thread.
        return await run_to_end(CPU.begin(demo_data.upload, target, options, advance, stop), stop)


def _progress(console: Console) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=not sys.stdout.isatty())


def _show(done: Sequence[_Epoch]) -> None:
    """Print the figures of the trainers, and the counters of each node's daemon."""
    names = (">epoch", ">loss", ">samples", ">samples/s", ">first batch", ">waiting for data")
    print_table("feedd demo: training", names, [(str(number), *one.row()) for number, one in enumerate(done)])
    rows = [
        (str(number), str(node), f"{gets:.0f}", format_size(size_bytes), f"{hits:.0f}", f"{misses:.0f}")
        for number, one in enumerate(done)
        for node, (gets, size_bytes, hits, misses) in enumerate(one.nodes)
    ]
    names = (">epoch", ">node", ">S3 GETs", ">S3 bytes", ">cache hits", ">cache misses")
    print_table("feedd demo: daemons", names, rows)
    sizes = [size_bytes for _, size_bytes, *_ in done[0].nodes]
    if len(sizes) > 1:
        shares = ", ".join(f"{one / (sum(sizes) or 1):.0%}" for one in sizes)
        typer.echo(f"each node fetched its own part of the objects: {shares}")


def register(app: typer.Typer) -> None:
    """Add the ``demo`` command."""
    app.command(epilog="Example: feedd demo --nodes 2")(demo)
