"""``feedd doctor``: names the stage that holds a job up, or would, and what to turn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedd.cli.doctor_url import UrlOptions, measure_url
from feedd.cli.flags import ConfigFlag, Flags, SetFlag
from feedd.cli.running_daemon import NodeFlag, chosen_address, daemon_address
from feedd.config.types import is_unix
from feedd.errors import BadConfig, NotFound
from feedd.units import format_count, format_size

if TYPE_CHECKING:
    from feedd.diagnosis.finding import Diagnosis, Evidence
    from feedd.diagnosis.window import Window


UrlArgument = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="Measure this data without a trainer; default: measure a running job."),
]
FieldsFlag = Annotated[
    str, typer.Option("--fields", metavar="JSON", help="With URL: what to decode, as fields= of FeedDataset.")
]
BatchSizeFlag = Annotated[int, typer.Option("--batch-size", min=1, help="With URL: samples of a batch.")]
WhatIfFlag = Annotated[
    str,
    typer.Option(
        "--what-if",
        metavar="CASE",
        help="With URL: take the same batches again with shards cached, images decoded, or from a local copy of the "
        "files: cached, decoded or local.",
    ),
]
JobFlag = Annotated[
    str,
    typer.Option(
        "--job", help="First digits of a session's id, a job's share= name or a trainer's process id; default: all."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the ``doctor`` command."""

    @app.command(epilog="Example: feedd doctor --seconds 30")
    def doctor(
        url: UrlArgument = None,
        fields: FieldsFlag = "",
        batch_size: BatchSizeFlag = 256,
        what_if: WhatIfFlag = "",
        job: JobFlag = "",
        seconds: Annotated[float, typer.Option("--seconds", min=2, max=3600, help="How long to measure.")] = 10.0,
        json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 - a flag is a flag
        address: NodeFlag = None,
        config: ConfigFlag = None,
        set_: SetFlag = None,
    ) -> None:
        """Measure a running job, and name the one stage that holds it up, with the evidence and what to turn.

        Run it while the job trains, as the job's user or as an administrator of the daemon. With a URL, no job is
        needed: a stand-in takes batches as fast as they come, from a daemon with an empty cache, or from the daemon at
        --address or $FEEDD_ADDRESS.
        """
        from feedd.diagnosis.diagnose import diagnose  # noqa: PLC0415 - as gRPC below

        flags, room = Flags(config=config, set=set_), None
        if url is None:
            _refuse({"--fields": fields, "--what-if": what_if})
            window = _of_job(daemon_address(address, flags.load().config), job, seconds)
        else:
            _refuse({"--job": job}, "no URL")
            options = UrlOptions(url, fields, batch_size, seconds, chosen_address(address, None) or "", what_if)
            options.check()
            window, room = asyncio.run(measure_url(options, flags))
        diagnosis = diagnose(window)
        if json_:
            more = {} if room is None else {"what_if": room.as_json()}
            typer.echo(json.dumps(diagnosis.as_json() | more, indent=2))
            return
        _show(Console(), diagnosis, window)
        if room is not None:
            Console().print(f"[bold]what if {room.case}[/]  {room.now:,.1f} to {room.best:,.1f} batches/s, measured")


def _of_job(address: str, job: str, seconds: float) -> Window:
    """Return what happened in the next seconds to the trainers of a job.

    Raises:
        NotFound: there is no trainer.
    """
    window = asyncio.run(_measure(address, job, seconds))
    if not window.ranks and not window.listing:
        raise NotFound(
            "expected a trainer that takes batches, got none",
            object=job or address,
            hint="run feedd doctor while the job trains, or give it a URL",
            stage="cli",
        )
    return window


def _refuse(given: dict[str, str], expected: str = "a URL") -> None:
    """Refuse options that mean nothing here.

    Raises:
        BadConfig: one of them is given.
    """
    for option, value in given.items():
        if value:
            message = f"expected {expected} with {option}"
            raise BadConfig(message, object=option, hint="see feedd doctor --help", stage="cli")


async def _measure(address: str, job: str, seconds: float) -> Window:
    from feedd.diagnosis.node_sampler import NodeSampler  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above

    async with node_at(address) as node:
        return await NodeSampler(node.daemons, job=job, local=is_unix(address)).measure(seconds)


def _show(console: Console, diagnosis: Diagnosis, window: Window) -> None:
    from feedd.diagnosis.finding import STAGES, TITLES  # noqa: PLC0415 - see _measure

    finding, knob = diagnosis.finding, diagnosis.finding.knob
    ranks = format_count(len(window.ranks), "rank")
    if window.job_count > 1:
        ranks += f" of the job that waits the longest, of {window.job_count} jobs (--job chooses)"
    console.print(f"[bold]{escape(TITLES[finding.verdict])}[/] ({finding.verdict})")
    table = Table("measured", "value", "threshold", title=f"{window.seconds:.0f} s, {ranks}", title_justify="left")
    for one in finding.evidence:
        table.add_row(escape(one.what), *_numbers(one))
    console.print(table)
    console.print(f"[bold]do[/]    {escape(finding.advice)}")
    if knob is not None:
        turned = f"{knob.option} from {knob.now} to {knob.to}" if knob.now else f"{knob.option} {knob.to}"
        console.print(f"[bold]turn[/]  {escape(turned)}")
    if diagnosis.predicted is not None:
        console.print(f"[bold]gain[/]  {diagnosis.now:,.1f} to {diagnosis.predicted:,.1f} batches/s, predicted")
    if diagnosis.behind:
        console.print(f"[bold]next[/]  {escape(STAGES[diagnosis.behind])} ({diagnosis.behind})")


def _numbers(one: Evidence) -> tuple[str, str]:
    return _number(one.value, one.unit), _number(one.threshold, one.unit) if one.threshold else "-"


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.0%}"
    if unit in {"bytes", "bytes/s"}:
        return format_size(round(value)) + unit.removeprefix("bytes")
    return f"{value:.3g} {unit}"
