"""``feedd doctor``: names the stage that holds a job up, and what to turn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedd.cli.flags import ConfigFlag, Flags
from feedd.cli.running_daemon import AddressFlag, daemon_address
from feedd.config.types import is_unix
from feedd.errors import NotFound
from feedd.units import format_size

if TYPE_CHECKING:
    from feedd.diagnosis.finding import Diagnosis, Evidence
    from feedd.diagnosis.window import Window


def register(app: typer.Typer) -> None:
    """Add the ``doctor`` command."""

    @app.command(epilog="Example: feedd doctor --seconds 30")
    def doctor(
        job: Annotated[
            str, typer.Option("--job", help="First digits of a session's id, or a job's share= name; default: all.")
        ] = "",
        seconds: Annotated[float, typer.Option("--seconds", min=2, max=3600, help="How long to measure.")] = 10.0,
        json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002 - a flag is a flag
        address: AddressFlag = None,
        config: ConfigFlag = None,
    ) -> None:
        """Measure a running job, and name the one stage that holds it up, with the evidence and what to turn.

        Run it while the job trains, as the job's user or as an administrator of the daemon.
        """
        from feedd.diagnosis.diagnose import diagnose  # noqa: PLC0415 - as gRPC below

        found = daemon_address(address, Flags(config=config).load().config)
        window = asyncio.run(_measure(found, job, seconds))
        if not window.ranks:
            raise NotFound(
                "expected a trainer that takes batches, got none",
                object=job or found,
                hint="run feedd doctor while the job trains; clients before protocol 1.12 tell no times",
                stage="cli",
            )
        diagnosis = diagnose(window)
        if json_:
            typer.echo(json.dumps(diagnosis.as_json(), indent=2))
            return
        _show(Console(), diagnosis, window)


async def _measure(address: str, job: str, seconds: float) -> Window:
    from feedd.diagnosis.node_sampler import NodeSampler  # noqa: PLC0415 - gRPC takes a third of a second to import
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above

    async with node_at(address) as node:
        return await NodeSampler(node.daemons, job=job, local=is_unix(address)).measure(seconds)


def _show(console: Console, diagnosis: Diagnosis, window: Window) -> None:
    from feedd.diagnosis.finding import STAGES, TITLES  # noqa: PLC0415 - see _measure

    finding, knob = diagnosis.finding, diagnosis.finding.knob
    ranks = f"{len(window.ranks)} rank{'s' if len(window.ranks) > 1 else ''}"
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
