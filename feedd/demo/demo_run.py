"""Runs the demo: starts server, daemons and trainers as real processes, shows progress and prints the results."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from feedd.demo import data
from feedd.demo.nodes import Counters, Node, free_port, start_node, start_server
from feedd.demo.result_table import EpochFacts, show
from feedd.demo.trainers import Trainer, start_trainer
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_to_end
from feedd.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS_WITH_NODES = 2  # ranks per node when several nodes are shown
_BUCKET, _PREFIX = "feedd-demo", "train/"
KEPT = Path("feedd-demo", "train")  # below the current directory


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo.

    Attributes:
        url: URL of the user's data; None: generated data on an embedded server.
        keep: absolute path of a folder for copies of the generated shards; None: they are deleted with the server.
    """

    url: str | None = None
    node_count: int = 1
    epochs: int = 2
    keep: Path | None = None
    data: data.DataOptions = field(default_factory=data.DataOptions)


def run(options: DemoOptions) -> int:
    """Run the demo in this terminal; return the process's exit code.

    All files are in one temporary directory, and all child processes end with this process. Only ``keep`` leaves files
    behind.

    Raises:
        feedd.errors.FeeddError: the user's data or environment does not allow the demo.
    """
    console = Console(stderr=False)
    try:
        facts = asyncio.run(_interruptible(options, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("[yellow]interrupted; all processes were stopped")
        return 130
    show(console, facts, options.node_count, own_data=options.url is not None)
    console.print(_next_steps(options), highlight=False, soft_wrap=True)
    return 0 if options.url or len(facts) == 1 or facts[-1].loss < facts[0].loss else 1


def _next_steps(options: DemoOptions) -> str:
    """Return the text that suggests further commands, one per line, each with its purpose."""
    steps = []
    if options.url is None and options.keep is not None:
        train = f"python -m feedd_client.demo --url {options.keep}/ --classes {data.CLASS_COUNT}"
        steps += [(f"feedd plan {KEPT}/ --nodes 4", "which node gets which shards")]
        steps += [(f"feedd index {KEPT}/", "count samples, so that len(dataset) works")]
        steps += [(train, "train on the same shards; starts a daemon by itself")]
    elif options.url is None:
        steps += [("feedd demo --keep", f"run the demo again, and keep the shards in {KEPT}")]
    if options.node_count == 1:
        steps += [("feedd demo --nodes 2", "two daemons as two nodes, two ranks each")]
    if options.url is None:
        steps += [("feedd demo --url s3://my-bucket/train/", "your own data")]
    steps += [("feedd check", "check this machine and the configuration")]
    return "\ntry next:\n" + "\n".join(f"  {command}  [dim]# {what}[/]" for command, what in steps)


async def _interruptible(options: DemoOptions, console: Console) -> list[EpochFacts]:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    async with AsyncExitStack() as stack:
        return await _stage(options, console, stack)


async def _stage(options: DemoOptions, console: Console, stack: AsyncExitStack) -> list[EpochFacts]:
    home = Path(tempfile.mkdtemp(prefix="feedd-demo-"))
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "TORCHINDUCTOR_CACHE_DIR": str(home / "torch")}
    env.pop("FEEDD_ADDRESS", None)
    url = options.url
    if url is None:
        endpoint = await start_server(stack, home)
        env |= _embedded_env(endpoint)
        url = f"s3://{_BUCKET}/{_PREFIX}"
        target = data.Target(endpoint, _BUCKET, _PREFIX, options.keep)
        size = await _write_data(options.data, target, console)
        console.print(
            f"[dim]{format_count(options.data.shard_count, 'shard')}, {format_size(size)} at {url} on {endpoint}"
        )
    nodes = [await start_node(stack, home, index, env) for index in range(options.node_count)]
    ranks = RANKS_WITH_NODES if options.node_count > 1 else 1
    trainers = await _start_trainers(stack, options, nodes, ranks, url, env)
    return await _train(options, console, nodes, trainers)


def _embedded_env(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


async def _write_data(options: data.DataOptions, target: data.Target, console: Console) -> int:
    with _progress(console) as progress:
        task = progress.add_task("writing shards", total=options.shard_count)
        stop = threading.Event()
        advance = partial(progress.advance, task)
        # A thread inside OpenCV at process exit would abort the process, so wait for the thread.
        return await run_to_end(CPU.begin(data.upload, target, options, advance, stop), stop)


async def _start_trainers(
    stack: AsyncExitStack, options: DemoOptions, nodes: Sequence[Node], ranks: int, url: str, env: dict[str, str]
) -> list[Trainer]:
    world = len(nodes) * ranks
    port = free_port()
    arguments = ["--url", url, "--epochs", str(options.epochs), "--lockstep"]
    if options.url is None:
        arguments += ["--classes", str(data.CLASS_COUNT)]
    trainers = []
    for rank in range(world):
        node = nodes[rank // ranks]
        place = {
            "FEEDD_ADDRESS": node.address,
            "WORLD_SIZE": str(world),
            "RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank % ranks),
            "GROUP_RANK": str(rank // ranks),
            "GROUP_WORLD_SIZE": str(len(nodes)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        trainers.append(await start_trainer(stack, rank, arguments, env | place))
    return trainers


async def _train(
    options: DemoOptions, console: Console, nodes: Sequence[Node], trainers: Sequence[Trainer]
) -> list[EpochFacts]:
    facts: list[EpochFacts] = []
    known = options.data.shard_count * options.data.samples_per_shard if options.url is None else None
    for epoch in range(options.epochs):
        with _progress(console) as progress:
            bar = progress.add_task(f"epoch {epoch}", total=known)
            before = [await node.counters() for node in nodes]
            await asyncio.gather(*(trainer.ready() for trainer in trainers))
            results = await asyncio.gather(
                *(trainer.epoch(_advancing(progress, bar, trainers)) for trainer in trainers)
            )
            after = [await node.counters() for node in nodes]
        facts.append(EpochFacts.of(epoch, results, _differences(before, after)))
    await asyncio.gather(*(trainer.done() for trainer in trainers))
    return facts


def _advancing(progress: Progress, bar: Any, trainers: Sequence[Trainer]) -> Any:  # noqa: ANN401 - rich's TaskID is opaque
    return lambda: progress.update(bar, completed=sum(trainer.samples for trainer in trainers))


def _differences(before: Sequence[Counters], after: Sequence[Counters]) -> list[Counters]:
    return [new.minus(old) for old, new in zip(before, after, strict=True)]


def _progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=not sys.stdout.isatty())
