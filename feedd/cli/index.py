"""``feedd index``: counts the samples of every shard once, for all later readers of the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path  # noqa: TC003 - typer resolves annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.cache.lock import temporary_cache
from feedd.cli.flags import CacheSizeFlag, ConfigFlag, EngineFlag, Flags, JsonFlag, PartFlag, SetFlag
from feedd.cli.report import (
    EXIT_FAILED,
    bar,
    byte_columns,
    log_without_notices,
    notice_facts,
    print_json,
    say,
    say_notices,
)
from feedd.cli.running import open_parts, run_stoppable
from feedd.dataset.shard_part import WHOLE, ShardPart
from feedd.metrics import SOURCE_BYTES
from feedd.prepare.index_writer import IndexTarget
from feedd.prepare.sample_counter import Counter, Counting, index_url
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.errors import FeeddError
    from feedd.prepare.manifest_writer import Difference, Written
    from feedd.sessions.opening import Pipeline

_PER_WORKER = 4  # shards in progress per worker: some are fetched while others are read
_TOLD_MAX = 8
_CACHE_SIZE = "16GiB"  # shards are read and then dropped: enough for the shards in progress


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of the command.

    Attributes:
        target: URL or absolute path of the index.
        check: only report what the index knows.
        manifest: write a frozen manifest too, or compare the newest one.
        part: the shards to count.
        engine: counts the shards: ``local`` or ``ray``.
    """

    url: str
    target: str
    check: bool
    manifest: bool = False
    part: ShardPart = WHOLE
    engine: str = "local"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a run.

    Attributes:
        stopped: whether a signal stopped the run; counts made until then are saved.
        saved: whether the index holds all counts.
        left_count: shards of the part that are not counted.
        written: the frozen manifest; None: none is written.
        difference: the newest frozen manifest, compared with the data; None: there is none.
        fetched_bytes: bytes of objects that the store has sent.
        saved_to: URL of the object that holds the counts: the index, or the file of a part.
    """

    progress: Counting
    stopped: bool
    saved: bool
    left_count: int = 0
    written: Written | None = None
    difference: Difference | None = None
    fetched_bytes: int = 0
    saved_to: str = ""


def index(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix/ or a folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file instead of beside the data.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only report how many shards the index knows.")] = False,  # noqa: FBT002 - a flag is a flag
    manifest: Annotated[  # noqa: FBT002 - a flag is a flag
        bool,
        typer.Option(
            "--manifest", help="Also write a frozen manifest, for frozen+ URLs. With --check: compare the newest one."
        ),
    ] = False,
    engine: EngineFlag = "local",
    part: PartFlag = None,
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    cache_size: CacheSizeFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Count the samples of every shard and write them beside the data, as _feedd_index.json.

    Where headers or footers tell the samples of a large shard, only these are fetched. The last line tells the bytes.

    With the index, the number of steps is known when training starts: all ranks have equal steps, len(dataset) works,
    and data can be split by samples. Shards that the index already knows are not read again. A stopped run continues
    where it was. Several runs may count the same data at once: no run loses the counts of another.

    --part I/N counts every N-th shard, so that N jobs share the work. Each job keeps its counts in a file of its own,
    and the last one to end writes the index. Any job may be repeated. --engine ray counts on a Ray cluster.

    --manifest writes a manifest when the counts of all shards are known: of jobs, the last one does.
    FeedDataset("frozen+s3://bucket/train/") then needs no listing.
    """
    if manifest and out is not None:
        raise typer.BadParameter("expected --manifest or --out: a manifest lies beside the data", param_hint="--out")
    chosen = WHOLE if part is None else ShardPart.parse(part)
    flags = Flags(config=config, cache_size=cache_size or _CACHE_SIZE, set=set_)
    flags.load()
    log_without_notices()
    job = _Job(url, index_url(url) if out is None else str(out.absolute()), check, manifest, chosen, engine)
    with bar(*byte_columns(), quiet=json_ or check) as update:

        def report(progress: Counting) -> None:
            what = f"{progress.done_count} of {progress.shard_count} shards, {progress.sample_count} samples"
            update(description=what, total=progress.size_bytes, completed=progress.done_bytes)

        outcome = _run(flags, job, report)
    _conclude(outcome, job, json_=json_)


def _conclude(outcome: _Outcome, job: _Job, *, json_: bool) -> None:
    """Print the result; exit with 1 unless all shards are known."""
    progress, stopped = outcome.progress, outcome.stopped
    if json_:
        facts = {
            "shards": progress.shard_count,
            "known": progress.done_count,
            "counted": progress.done_count - progress.known_count,
            "samples": progress.sample_count,
            "counted_bytes": progress.counted_bytes,
            "fetched_bytes": outcome.fetched_bytes,
            "failed": [str(failure) for failure in progress.failures],
            "passed_over": progress.passed_over.count,
            "notices": notice_facts(progress.notices),
            "stopped": stopped,
        }
        if job.part != WHOLE:
            facts |= {"part": f"{job.part.index}/{job.part.count}", "left": outcome.left_count}
        if job.manifest:
            facts["manifest"] = _manifest_facts(outcome)
        print_json(facts)
    for line in _reported_once(progress.failures):
        say(f"error: {line}")
    say_notices(progress.notices)
    known = f"{progress.done_count} of {progress.shard_count} shards known, {progress.sample_count} samples"
    if not stopped:
        say(f"{known}{'' if job.check else f', in {outcome.saved_to}'}")
        if not job.check and outcome.saved_to != job.target:
            say(f"the last part to end writes {job.target}")
    elif not progress.shard_count:
        say("stopped before the data was listed; no shard was counted")
    elif outcome.saved:
        say(f"stopped: {known}, in {outcome.saved_to}; run the command again to continue")
    else:
        say(
            f"stopped: {known}, but not all counts are saved; run the command again to continue from {outcome.saved_to}"
        )
    if progress.counted_bytes:
        say(f"fetched {format_size(outcome.fetched_bytes)} to count {format_size(progress.counted_bytes)}")
    if outcome.written is not None:
        say(f"{'frozen in' if outcome.written.new else 'already frozen in'} {outcome.written.url}")
    stale = job.manifest and job.check and _say_difference(outcome.difference)
    if stopped or stale or (progress.done_count != progress.shard_count and (job.part == WHOLE or outcome.left_count)):
        raise typer.Exit(EXIT_FAILED)


def _manifest_facts(outcome: _Outcome) -> dict[str, object] | None:
    """Return what --json prints about the manifest; None: there is none."""
    written, found = outcome.written, outcome.difference
    if written is not None:
        return {"url": written.url, "objects": written.objects, "bytes": written.size_bytes, "new": written.new}
    if found is not None:
        return {"url": found.url, "added": found.added, "removed": found.removed, "changed": found.changed}
    return None


def _say_difference(found: Difference | None) -> bool:
    """Print how the newest manifest differs from the data; return whether it does."""
    if found is None:
        say("no frozen manifest")
        return True
    if not found.total:
        say(f"{found.url} lists the data as it is")
        return False
    differs = f"{found.added} objects added, {found.removed} removed, {found.changed} changed, such as {found.example}"
    say(f"{found.url} is out of date: {differs}; run feedd index --manifest to write the next version")
    return True


def _reported_once(failures: Sequence[FeeddError]) -> list[str]:
    """Return a line for each kind of failure, with its first object and the number of other objects."""
    by_reason: dict[tuple[str, str], list[FeeddError]] = {}
    for failure in failures:
        by_reason.setdefault((failure.kind, failure.hint or failure.message), []).append(failure)
    kinds = list(by_reason.values())
    lines = [f"{kind[0]}{f' (and {len(kind) - 1} more objects)' if len(kind) > 1 else ''}" for kind in kinds]
    more = sum(map(len, kinds[_TOLD_MAX:]))
    return [*lines[:_TOLD_MAX], *([f"{more} more objects failed for other reasons"] if more else [])]


def _run(flags: Flags, job: _Job, report: Callable[[Counting], object]) -> _Outcome:
    async def run(requests: StopRequests) -> _Outcome:
        # Signals are handled before the directory exists, so that it is always removed.
        with temporary_cache() as folder:
            return await _count(replace(flags, cache_dir=folder).load().config, job, report, requests)

    return run_stoppable(run)


async def _count(config: Config, job: _Job, report: Callable[[Counting], object], requests: StopRequests) -> _Outcome:
    """Count until all shards are done or a first signal comes, then save; a second signal also ends the saving."""
    from feedd.daemon.cut_short import ended_by  # noqa: PLC0415 - see run_stoppable
    from feedd.observe.recorder import TotalRecorder  # noqa: PLC0415 - see run_stoppable

    recorder = TotalRecorder(SOURCE_BYTES)
    counter: Counter | None = None
    saved = False
    fetched_bytes = 0
    written: Written | None = None
    found: Difference | None = None
    async with ended_by(requests.now), open_parts(config, recorder) as pipeline:
        counter = _counter(pipeline, job, report)
        async with ended_by(requests.drain):
            await counter.open()
            if not job.check:
                fetched_bytes = await _count_all(counter, config, job)
        if counter.is_open and not job.check:
            await counter.save()
            if not requests.drain.is_set():
                await counter.finish()
        saved = True
        if counter.is_open and job.manifest and not requests.drain.is_set():
            if job.check:
                found = await counter.compare()
            elif counter.progress.done_count == counter.progress.shard_count:
                written = await counter.freeze()
    progress = Counting() if counter is None else counter.progress
    whole = saved and counter is not None and counter.is_open and progress.done_count == progress.shard_count
    left_count = counter.left_count if counter is not None and counter.is_open else 0
    stopped = requests.drain.is_set() and not whole
    saved_to = job.target if counter is None else counter.target_url
    fetched_bytes += int(recorder.total)
    return _Outcome(progress, stopped, saved, left_count, written, found, fetched_bytes, saved_to)


async def _count_all(counter: Counter, config: Config, job: _Job) -> int:
    """Count the shards of the part; return the bytes that were fetched outside of this process."""
    from feedd.daemon.wiring import workers_max  # noqa: PLC0415 - see run_stoppable

    if job.engine == "ray":
        from feedd.prepare.count_on_ray import count_on_ray  # noqa: PLC0415 - an extra

        return await count_on_ray(counter, config, job.url)
    await counter.count(_PER_WORKER * workers_max(config))
    return 0


def _counter(pipeline: Pipeline, job: _Job, report: Callable[[Counting], object]) -> Counter:
    return Counter(pipeline, job.url, IndexTarget(pipeline.stages.sources, job.target), report, job.part)


def register(app: typer.Typer) -> None:
    """Add the ``index`` command."""
    app.command(epilog="Example: feedd index s3://bucket/train/")(index)
