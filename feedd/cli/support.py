"""``feedd support``: packs what a question about a daemon needs, without secrets and without data."""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from feedd import __version__
from feedd.cli.check import examine
from feedd.cli.flags import ConfigFlag, Flags
from feedd.cli.report import say
from feedd.cli.running import NodeFlag, daemon_address
from feedd.config import render
from feedd.errors import FeeddError
from feedd.observe.logs import redact_text

if TYPE_CHECKING:
    from feedd.cli.check import Finding
    from feedd.config import Config, Effective

_MODE: Final = 0o600
_LOG_HINT: Final = "add the daemon's log of the time in question; secrets are removed from it when it is written"


def support(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write; default: feedd-support.tar.gz here.")
    ] = None,
    address: NodeFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Pack what a question needs into one file, without secrets: versions, configuration, checks, metrics.

    The sessions of the daemon are in it with their URLs; data and keys of objects are not.
    """
    effective = Flags(config=config).load()
    target = file or Path("feedd-support.tar.gz")
    told = asyncio.run(_daemon(address, effective.config))
    parts = {
        "versions.txt": _versions(),
        "config.txt": _configuration(effective),
        "check.txt": "".join(map(_line, examine(effective.config))),
        "daemon.json": json.dumps(told, indent=1),
    }
    _write(target, parts)
    typer.echo(f"wrote {target}: {', '.join(parts)}")
    if "error" in told:
        say(f"warning: without the daemon's metrics and sessions: {told['error']}; --address names the daemon")
    typer.echo(_LOG_HINT)


def _line(finding: Finding) -> str:
    return f"{finding.verdict.value}: {finding.question}: {finding.detail}\n"


def _versions() -> str:
    facts = {
        "feedd": __version__,
        "python": sys.version.replace("\n", " "),
        "kernel": platform.release(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "user": str(os.geteuid()),
    }
    lines = [f"{name}: {value}" for name, value in facts.items()]
    lines += sorted({f"{one.metadata['Name']}=={one.version}" for one in importlib.metadata.distributions()})
    return "".join(f"{line}\n" for line in lines)


def _configuration(effective: Effective) -> str:
    values = render(effective.config)
    return "".join(f"{name} = {value}  # {effective.origins.get(name, '')}\n" for name, value in values.items())


async def _daemon(address: str | None, config: Config) -> dict[str, Any]:
    """Return what a running daemon tells about itself, or why none does."""
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - slow to import, like gRPC

    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - see above

    try:
        address = daemon_address(address, config)
        async with node_at(address) as node:
            stats, sessions = [await daemon.stats() for daemon in node.daemons], await node.sessions()
    except FeeddError as error:
        return {"address": address, "error": str(error)}
    found = [MessageToDict(one, preserving_proto_field_name=True) for one in sessions]
    first, *others = [MessageToDict(one, preserving_proto_field_name=True) for one in stats]
    return {"address": address, **first, "other_lanes": others, "session_list": found}


def _write(target: Path, parts: dict[str, str]) -> None:
    """Write the archive, for this user only and without secrets."""
    draft_fd, draft = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # of mode 0600, and nobody else's
    try:
        with os.fdopen(draft_fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            _fill(archive, parts)
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _fill(archive: tarfile.TarFile, parts: dict[str, str]) -> None:
    for name, text in parts.items():
        data = redact_text(text, len(text)).encode("utf-8", "replace")
        entry = tarfile.TarInfo(f"feedd-support/{name}")
        entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())  # noqa: TID251 - a date for people
        archive.addfile(entry, io.BytesIO(data))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: feedd support --address unix:///run/feedd/feedd.sock")(support)
