"""``feedd files``: SageMaker's File mode, on any machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feedd.channels.channel import InputMode
from feedd.channels.job import CONFIG_FOLDER, DATA_FOLDER, ChannelFlags, Cluster, Job
from feedd.cli.flags import (
    CacheDirFlag,
    ChannelFlag,
    CompressionFlag,
    ConfigFlag,
    Flags,
    JsonFlag,
    NodeRankFlag,
    NodesFlag,
    RootFlag,
    SeedFlag,
    SetFlag,
    ShardingFlag,
    cluster_of,
)
from feedd.cli.report import EXIT_FAILED, error_facts, log_without_notices, meter, print_json, say
from feedd.cli.running import open_stores, run_stoppable
from feedd.errors import BadRequest
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.catalog.sources import Sources
    from feedd.channels.channel import Channel
    from feedd.cli.report import Meter
    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.file_mode.files_run import ChannelFiles

_STATE_FOLDER = "input/.feedd"
_SHOW_S = 0.25


def files(
    root: RootFlag = Path("/opt/ml"),
    channel: ChannelFlag = None,
    nodes: NodesFlag = None,
    node_rank: NodeRankFlag = None,
    sharding: ShardingFlag = None,
    seed: SeedFlag = None,
    compression: CompressionFlag = None,
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    cache_dir: CacheDirFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Put this node's objects of each channel below ROOT/input/data, as files with their own names and bytes.

    Exits with 0 when all files are there. A file gets its name when it is whole and verified. A stopped run continues
    where it was: later runs fetch missing and changed objects only, and remove files whose objects are gone.

    Channels, hosts and their settings come from ROOT/input/config, as in a SageMaker container, unless flags name them.
    Objects that a daemon on this machine has cached are copied from its cache directory, and verified. A cache
    directory that other users may write to is not used.
    """
    options = Flags(config=config, cache_dir=cache_dir, set=set_).load().config
    log_without_notices()
    job = Job.read(root.absolute(), os.environ)
    cluster = job.cluster if nodes is None and node_rank is None else cluster_of(nodes, node_rank)
    chosen = job.channels(ChannelFlags(tuple(channel or ()), sharding, seed, compression=compression))
    mine = _of_node(chosen if channel else _in_file_mode(chosen), cluster)
    with meter("files", quiet=json_) as shown:
        found, stopped = _run(options, job.root, mine, shown)
    _conclude(found, stopped=stopped, json_=json_)


def _in_file_mode(channels: Sequence[Channel]) -> list[Channel]:
    """Return the channels without those that the job reads in Pipe mode.

    Raises:
        BadRequest: the job reads all channels in Pipe mode.
    """
    found = [channel for channel in channels if channel.input_mode is not InputMode.PIPE]
    for channel in channels:
        if channel not in found:
            say(f"channel {channel.name}: the job reads it in Pipe mode, so it gets no files; see feedd pipe")
    if not found:
        message = "expected a channel in File or FastFile mode, got only channels in Pipe mode"
        raise BadRequest(message, object=CONFIG_FOLDER, hint="name channels with --channel, or run feedd pipe")
    return found


def _of_node(channels: Sequence[Channel], cluster: Cluster) -> list[tuple[Channel, int, int]]:
    """Return the channels that this node gets, with the number of nodes that share each, and this node's rank."""
    found = []
    for channel in channels:
        node = cluster.node_of(channel)
        if node is None:
            say(f"channel {channel.name}: it is for instance groups that this node does not belong to")
        else:
            found.append((channel, *node))
    return found


def _run(
    config: Config, root: Path, channels: Sequence[tuple[Channel, int, int]], shown: Meter
) -> tuple[list[ChannelFiles], bool]:
    """Return the channels' files, and whether a signal stopped the run."""
    found: list[ChannelFiles] = []

    async def run(requests: StopRequests) -> bool:
        await _bring(config, root, channels, found, shown, requests)
        return requests.drain.is_set()

    return found, run_stoppable(run)


async def _bring(
    config: Config,
    root: Path,
    channels: Sequence[tuple[Channel, int, int]],
    found: list[ChannelFiles],
    shown: Meter,
    requests: StopRequests,
) -> None:
    """List all channels into ``found``, then bring their files, until done or a signal comes."""
    from feedd.daemon.cut_short import ended_by  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.cached_entries import CachedEntries  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.files_run import FilesRun  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.root_lock import root_locked  # noqa: PLC0415 - see run_stoppable
    from feedd.flow.loop_thread import LoopThread  # noqa: PLC0415 - see run_stoppable
    from feedd.lanes.lane import Lane  # noqa: PLC0415 - see run_stoppable

    lanes = config.lanes if isinstance(config.lanes, int) else 1
    cached = CachedEntries([Lane(lane, lanes).cache_dir(config.cache.dir) for lane in range(lanes)])
    for refusal in cached.refused:
        say(f"{refusal.object}: nothing is copied from this cache: {refusal.message}")
    async with (
        ended_by(requests.now),
        open_stores(config, work_loop=LoopThread("feedd-fetch")) as sources,
        ended_by(requests.drain),
    ):
        found += await _listed(sources, root, channels)
        with root_locked(root / _STATE_FOLDER):
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(found, shown))
                try:
                    await FilesRun(sources.fetcher, cached).run(found)
                finally:
                    watching.cancel()
            _show(found, shown)


async def _watch(channels: Sequence[ChannelFiles], shown: Meter) -> None:
    """Show how far the channels are, until cancelled."""
    while True:
        _show(channels, shown)
        await asyncio.sleep(_SHOW_S)


def _show(channels: Sequence[ChannelFiles], shown: Meter) -> None:
    for one in channels:
        done, total = (one.done_count, one.done_bytes), (len(one.wanted), one.total_bytes)
        shown.show(f"channel {one.name}", done, total)


async def _listed(sources: Sources, root: Path, channels: Sequence[tuple[Channel, int, int]]) -> list[ChannelFiles]:
    from feedd.file_mode.channel_directory import ChannelDirectory  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.channel_listing import files_of  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.file_journal import FileJournal  # noqa: PLC0415 - see run_stoppable
    from feedd.file_mode.files_run import ChannelFiles  # noqa: PLC0415 - see run_stoppable

    found = []
    for channel, node_count, node_rank in channels:
        wanted = await files_of(sources, channel, node_count, node_rank)
        journal = FileJournal(root / _STATE_FOLDER / f"{channel.name}.files")
        found.append(ChannelFiles(channel.name, ChannelDirectory(root / DATA_FOLDER / channel.name, journal), wanted))
    return found


def _conclude(found: Sequence[ChannelFiles], *, stopped: bool, json_: bool) -> None:
    """Print the result; exit with 1 unless all files are there."""
    if json_:
        print_json({"channels": {one.name: _facts(one) for one in found}, "stopped": stopped})
    for channel in found:
        for failure in channel.failures:
            say(f"error: {failure}")
        say(_summary(channel))
    whole = bool(found) and all(channel.is_whole for channel in found)
    if stopped and not whole:
        say("stopped; run the command again to continue")
    if not whole:
        raise typer.Exit(EXIT_FAILED)


def _facts(channel: ChannelFiles) -> dict[str, Any]:
    return {
        "directory": str(channel.directory.path),
        "files": len(channel.wanted),
        "bytes": channel.total_bytes,
        "present": channel.present_count,
        "fetched": channel.fetched_count,
        "fetched_bytes": channel.fetched_bytes,
        "copied": channel.copied_count,
        "copied_bytes": channel.copied_bytes,
        "removed": channel.removed_count,
        "failed": error_facts(channel.failures),
    }


def _summary(channel: ChannelFiles) -> str:
    counts = {
        "fetched": channel.fetched_count,
        "copied from the cache": channel.copied_count,
        "there before": channel.present_count,
        "removed": channel.removed_count,
    }
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    whole = "" if channel.is_whole else f"{channel.done_count} of "
    return (
        f"channel {channel.name}: {whole}{len(channel.wanted)} files ({format_size(channel.total_bytes)}) in"
        f" {channel.directory.path}{': ' if parts else ''}{parts}"
    )


def register(app: typer.Typer) -> None:
    """Add the ``files`` command."""
    app.command(epilog="Example: feedd files --root /opt/ml --channel train=s3://bucket/train/")(files)
