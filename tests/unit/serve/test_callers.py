"""Who sent a call: by ticket, by certificate, by the socket that only one user can open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import pytest

from feedd.errors import BadRequest, PermissionDenied
from feedd.owner import Owner
from feedd.serve.callers import Callers
from feedd.serve.tickets import TICKET_HEADER, Tickets
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import error_of, serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Call:
    """What a call tells of its sender."""

    where: str = "unix:"
    headers: Sequence[tuple[str, str | bytes]] | None = ()
    facts: Mapping[str, Iterable[bytes]] = field(default_factory=dict)

    def peer(self) -> str:
        """Return the other end."""
        return self.where

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """Return the headers."""
        return self.headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS told."""
        return self.facts


OURS = Owner.of_this_process()


def test_a_ticket_names_a_user_while_its_connection_lasts() -> None:
    """At a socket that several users can open, no other call is served."""
    tickets = Tickets()
    callers = Callers(tickets, one_user=False, admin_socket="/run/x.admin")
    with tickets.issued(1000) as ticket:
        call = Call(headers=(("other", "x"), (TICKET_HEADER, ticket)))
        assert callers.of(call).owner == Owner("uid", "1000")
        assert not callers.of(call).administers
        with pytest.raises(PermissionDenied, match="administrator for draining, got uid 1000") as refused:
            callers.admin(call, "draining")
        assert "/run/x.admin" in refused.value.hint
    assert not len(tickets)
    for late in (call, Call(), Call(headers=None), Call(headers=((TICKET_HEADER, "text"),))):
        with pytest.raises(PermissionDenied, match="expected a ticket"):
            callers.of(late)


def test_where_one_user_connects_that_user_administers() -> None:
    """Root and the daemon's user need no ticket; with one, sessions are told apart."""
    tickets = Tickets()
    callers = Callers(tickets, one_user=True)
    assert (callers.of(Call()).owner, callers.of(Call()).administers) == (OURS, True)
    with tickets.issued(0) as ticket:
        root = callers.admin(Call(headers=((TICKET_HEADER, ticket),)), "draining")
    assert root.owner == Owner("uid", "0")


@pytest.mark.parametrize("one_user", [True, False])
@pytest.mark.parametrize("where", ["ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5", "ipv4:10.0.0.1:5"])
def test_nobody_administers_over_tcp(where: str, one_user: bool) -> None:
    """Not even from this machine: every local user can connect there."""
    callers = Callers(Tickets(), one_user=one_user)
    with pytest.raises(PermissionDenied, match="a TCP client without a certificate"):
        callers.admin(Call(where), "draining")


def test_a_certificate_names_its_holder() -> None:
    """By common name, else by the first alternative name."""
    callers = Callers(Tickets(), one_user=True)
    tcp = "ipv4:10.0.0.1:5"
    assert callers.of(Call(tcp)).owner == Owner("tcp")
    named = {"x509_common_name": [b"trainer-a"], "x509_subject_alternative_name": [b"spiffe://x"]}
    assert callers.of(Call(tcp, facts=named)).owner == Owner("subject", "trainer-a")
    del named["x509_common_name"]
    assert callers.of(Call(tcp, facts=named)).owner == Owner("subject", "spiffe://x")


def test_the_admin_socket_needs_no_ticket() -> None:
    """The permissions of its file have said who it is."""
    callers = Callers(Tickets(), one_user=True, administers=True)
    assert callers.admin(Call(), "draining").administers


async def test_very_long_texts_of_an_error_fit_a_clients_limit(short_dir: Path) -> None:
    """The client gets our error, cut, and not gRPC's about too many headers."""
    script = FakeScript(open_error=BadRequest("é" * 9000, object="o" * 9000, hint="h" * 9000))
    async with serving(short_dir, script) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open()
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = error_of(failure.value)
        assert (error.message[:2], error.object[-3:], error.hint[-3:]) == ("éé", "...", "...")
