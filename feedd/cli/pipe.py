"""``feedd pipe``: serves SageMaker's Pipe mode to unmodified training code."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedd.channels.channel import InputMode
from feedd.channels.job import ChannelFlags, Cluster, Job
from feedd.cli.flags import (
    ChannelFlag,
    CompressionFlag,
    ConfigFlag,
    Flags,
    LogFlag,
    LogLevelFlag,
    NodeRankFlag,
    NodesFlag,
    RootFlag,
    SeedFlag,
    SetFlag,
    ShardingFlag,
    channel_option,
    cluster_of,
    size_of,
)
from feedd.cli.report import EXIT_FAILED, say
from feedd.cli.running import run_stoppable
from feedd.errors import BadRequest
from feedd.observe.logs import configure_logging
from feedd.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.channels.channel import Channel
    from feedd.config import Config
    from feedd.daemon.signals import StopRequests
    from feedd.pipes.channel_pipe import PipeTotals

_BUFFER_MIN = 1 << 20
WrapperFlag = Annotated[
    str | None,
    channel_option(
        "--record-wrapper",
        metavar="RecordIO|None",
        help="RecordWrapperType: send each object, or attribute, as a RecordIO record.",
    ),
]
AttributeFlag = Annotated[
    list[str] | None,
    channel_option(
        "--attribute", metavar="NAME", help="AttributeNames of augmented manifests, in order. May be repeated."
    ),
]


def pipe(
    root: RootFlag = Path("/opt/ml"),
    channel: ChannelFlag = None,
    sharding: ShardingFlag = None,
    nodes: NodesFlag = None,
    node_rank: NodeRankFlag = None,
    seed: SeedFlag = None,
    record_wrapper: WrapperFlag = None,
    compression: CompressionFlag = None,
    attribute: AttributeFlag = None,
    buffer: Annotated[
        str, typer.Option("--buffer", metavar="SIZE", help="Memory for data in advance, of all channels together.")
    ] = "512MiB",
    config: ConfigFlag = None,
    log: LogFlag = None,
    log_level: LogLevelFlag = None,
    set_: SetFlag = None,
) -> None:
    """Serve SageMaker's Pipe mode: a FIFO ROOT/input/data/CHANNEL_EPOCH per epoch, until SIGTERM or SIGINT.

    The bytes are those of SageMaker: the objects of the channel, one after the other, decompressed and wrapped if the
    channel says so. Training code reads them unmodified. A reader may close a FIFO early, come late, or skip epochs.

    If an object cannot be read, the command names the object and exits with 1, and the reader sees the end of file.
    So end the training if this command ends first.
    """
    # typer imports no other module of the command before its flags are judged
    options = Flags(config=config, log=log, log_level=log_level, set=set_).load().config
    job = Job.read(root, os.environ)
    if nodes is not None or node_rank is not None:
        job = replace(job, cluster=cluster_of(nodes, node_rank))
    given = ChannelFlags(tuple(channel or ()), sharding, seed, record_wrapper, compression, tuple(attribute or ()))
    channels = _piped(job.channels(given), named=bool(given.urls))
    on_terminal = sys.stderr.isatty()
    form = options.log.format if options.log.format != "auto" else "text" if on_terminal else "json"
    configure_logging(form, options.log.level, brief=on_terminal and form == "text")
    totals, stopped_by = _run(root, channels, job.cluster, size_of(buffer, "--buffer", _BUFFER_MIN), options)
    for name, total in totals.items():
        say(f"{name}: {_summary(total)}")
    if not stopped_by:
        raise typer.Exit(EXIT_FAILED)


def _piped(channels: Sequence[Channel], *, named: bool) -> list[Channel]:
    """Return the channels to serve: those of the command line, or those of the job that are in Pipe mode.

    Raises:
        BadRequest: no channel of the job is in Pipe mode.
    """
    found = [one for one in channels if named or one.input_mode in {None, InputMode.PIPE}]
    for one in channels:
        if one not in found and one.input_mode is not None:
            say(f"channel {one.name} is in {one.input_mode.value} mode: not served here")
    if not found:
        raise BadRequest(
            "expected a channel in Pipe mode, got none",
            hint='set "TrainingInputMode": "Pipe" for the channel, or name it: --channel NAME=URL',
            stage="pipe",
        )
    return found


def _run(
    root: Path, channels: list[Channel], cluster: Cluster, buffer_bytes: int, config: Config
) -> tuple[dict[str, PipeTotals], str]:
    # The SDK takes most of a second to import; a wrong flag is reported before that.
    from feedd.pipes.pipe_run import PipePlan, serve_pipes  # noqa: PLC0415 - see above

    plan = PipePlan(root, channels, cluster, buffer_bytes)

    async def run(requests: StopRequests) -> tuple[dict[str, PipeTotals], str]:
        totals = await serve_pipes(plan, config, requests)
        return totals, requests.reason

    return run_stoppable(run)


def _summary(total: PipeTotals) -> str:
    ended = [f"{count} {ending.value}" for ending, count in total.epochs.items() if count]
    epochs = (
        f"{format_count(sum(total.epochs.values()), 'epoch')} ({', '.join(ended)})" if ended else "no epoch was read"
    )
    return f"{epochs}, {format_count(total.object_count, 'object')}, {format_size(total.size_bytes)}"


def register(app: typer.Typer) -> None:
    """Add the ``pipe`` command."""
    app.command(epilog="Example: feedd pipe --root /opt/ml --channel train=s3://bucket/train/ --sharding key")(pipe)
