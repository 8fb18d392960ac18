"""``feedd sessions``: shows who holds what of a running daemon, and ends a session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from feedd.cli.flags import ConfigFlag, Flags, JsonFlag
from feedd.cli.report import print_json, print_table
from feedd.cli.running import NodeFlag, daemon_address
from feedd.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.lanes.node_client import NodeClient
    from feedd.wire import feedd_pb2 as pb

_T = TypeVar("_T")
_sessions = typer.Typer(help="List the sessions of a running daemon, and end one.", no_args_is_help=True)


def _ask(address: str | None, config: ConfigFlag, question: Callable[[NodeClient], Awaitable[_T]]) -> _T:
    from feedd.lanes.node_client import node_at  # noqa: PLC0415 - gRPC takes a third of a second to import

    found = daemon_address(address, Flags(config=config).load().config)

    async def run() -> _T:
        async with node_at(found) as daemon:
            return await question(daemon)

    return asyncio.run(run())


@_sessions.command("ls", epilog="Example: feedd sessions ls --address unix:///run/feedd/feedd.sock")
def list_sessions(
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    address: NodeFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Show who holds what: your own sessions, or all if you administer the daemon."""
    found = _ask(address, config, lambda daemon: daemon.sessions())
    if json_:
        print_json([_facts(one) for one in found])
        return
    print_table(
        f"{format_count(len(found), 'session')}, {format_size(sum(one.arena_bytes for one in found))}",
        ("|id", "|owner", "|pids", ">slots", ">held", ">memory", "|age", "|silent for", "dataset"),
        (
            (
                one.id,
                one.owner,
                " ".join(map(str, one.pids)) or "-",
                str(one.slots),
                str(one.leases),
                format_size(one.arena_bytes),
                format_duration(one.age_s),
                format_duration(one.silent_s),
                " ".join(one.urls),
            )
            for one in found
        ),
    )


@_sessions.command("end", epilog="Example: feedd sessions end 3f9a01bc")
def end_session(
    session: Annotated[str, typer.Argument(metavar="ID", help="Id as feedd sessions ls shows it.")],
    address: NodeFlag = None,
    config: ConfigFlag = None,
) -> None:
    """End a session. Its trainer may open a new one; batches that it holds stay readable."""
    _ask(address, config, lambda daemon: daemon.end_session(session))
    typer.echo(f"ended session {session}")


def _facts(one: pb.SessionEntry) -> dict[str, object]:
    return {
        "id": one.id,
        "owner": one.owner,
        "pids": list(one.pids),
        "urls": list(one.urls),
        "slots": one.slots,
        "leases": one.leases,
        "arena_bytes": one.arena_bytes,
        "age_s": one.age_s,
        "silent_s": one.silent_s,
    }


def register(app: typer.Typer) -> None:
    """Add the ``sessions`` commands."""
    app.add_typer(_sessions, name="sessions")
