"""``feedd check``: shows the effective configuration with its origins, checks the machine, and reads from a URL."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from feedd.cli.bucket_check import examine_url
from feedd.cli.credentials import credentials
from feedd.cli.error_report import EXIT_FAILED
from feedd.cli.flags import (
    CacheDirFlag,
    CacheSizeFlag,
    ConfigFlag,
    Flags,
    LanesFlag,
    ListenFlag,
    LogFlag,
    LogLevelFlag,
    SetFlag,
    StatusFlag,
    WorkersFlag,
)
from feedd.cli.machine_check import Finding, Verdict, examine
from feedd.config import Effective, render

_STYLES = {
    Verdict.FINE: "green",
    Verdict.NOTE: "yellow",
    Verdict.DEGRADED: "bold yellow",
    Verdict.CANNOT: "red",
    Verdict.FAILED: "red",
}
_FATAL = {Verdict.CANNOT, Verdict.FAILED}


def check(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Also read from this prefix or object.", show_default=False)
    ] = None,
    config: ConfigFlag = None,
    listen: ListenFlag = None,
    cache_dir: CacheDirFlag = None,
    cache_size: CacheSizeFlag = None,
    status: StatusFlag = None,
    workers: WorkersFlag = None,
    lanes: LanesFlag = None,
    log: LogFlag = None,
    log_level: LogLevelFlag = None,
    set_: SetFlag = None,
) -> None:
    """Show the effective configuration, where each value came from, and whether this machine can serve it.

    With a URL, also check whether this machine can read it: credentials, endpoint, region, a listing, a ranged GET and
    checksums. Exits with 2 if the configuration is wrong, and with 1 if the machine cannot serve it or cannot read the
    URL. On a degraded machine the daemon still works, so the exit status is 0.
    """
    flags = Flags(config, listen, cache_dir, cache_size, status, workers, log, log_level, set_, lanes)
    effective = flags.load()
    console = Console()
    _show_configuration(console, effective)
    findings = [*examine(effective.config), *credentials(effective.config)]
    _show_findings(console, "This machine", findings)
    if url is not None:
        data = examine_url(effective.config, url)
        _show_findings(console, url, data)
        findings += data
    if any(finding.verdict in _FATAL for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _show_configuration(console: Console, effective: Effective) -> None:
    table = Table(title="Effective configuration", title_justify="left")
    table.add_column("option", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for name, value in render(effective.config).items():
        origin = effective.origins[name]
        table.add_row(escape(name), escape(value), escape(origin), style="dim" if origin == "default" else None)
    console.print(table)


def _show_findings(console: Console, title: str, findings: list[Finding]) -> None:
    table = Table(title=escape(title), title_justify="left")
    table.add_column("question", overflow="fold")
    table.add_column("answer", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        hint = f"\n{finding.hint}" if finding.hint else ""
        table.add_row(escape(finding.question), _marked(finding.verdict), escape(finding.detail + hint))
    console.print(table)


def _marked(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_STYLES[verdict])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd check --config /etc/feedd/feedd.toml s3://bucket/train/")(check)
