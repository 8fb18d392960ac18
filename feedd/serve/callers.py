"""Who sent a gRPC call, and whether that caller administers the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from feedd.errors import PermissionDenied
from feedd.owner import Owner
from feedd.serve.tickets import TICKET_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from feedd.serve.tickets import Tickets

_TCP: Final = ("ipv4:", "ipv6:")
"""How the addresses of TCP clients begin. A Unix socket may have any name that its client bound it to."""


class CallContext(Protocol):
    """What is read of a gRPC servicer context."""

    def peer(self) -> str:
        """Return the address of the other end."""

    def invocation_metadata(self) -> Any:  # noqa: ANN401 - grpc's type has no name
        """Return the headers of the call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS told about the other end."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a call.

    Attributes:
        owner: the user or certificate.
        administers: whether the caller may see and change what belongs to others.
    """

    owner: Owner
    administers: bool = False


class Callers:
    """Tells the callers of one gRPC server.

    Args:
        tickets: the tickets of the arena socket.
        one_user: only the daemon's own user and root can open its sockets. Calls without a ticket are then theirs, and
            both may administer the daemon.
        admin_socket: path of the admin socket, for hints; empty: the daemon has none.
        administers: every caller of this server may administer the daemon, because only such users can open its socket.
    """

    def __init__(self, tickets: Tickets, *, one_user: bool, admin_socket: str = "", administers: bool = False) -> None:
        self._tickets = tickets
        self._one_user = one_user
        self._admin_socket = admin_socket
        self._administers = administers

    def of(self, context: CallContext | Any) -> Caller:  # noqa: ANN401 - grpc's context, whose stubs lack methods
        """Return who sent a call.

        Raises:
            PermissionDenied: the call came through a Unix socket that several users can open, and names no user.
        """
        if context.peer().startswith(_TCP):
            return Caller(_of_certificate(context.auth_context()))
        if self._administers:
            return Caller(Owner.of_this_process(), administers=True)
        ticket = next((value for name, value in context.invocation_metadata() or () if name == TICKET_HEADER), None)
        owner = self._tickets.owner(ticket) if isinstance(ticket, bytes) else None
        if owner is None and not self._one_user:
            got = "none" if ticket is None else "one that has ended"
            hint = "feedd-client gets one from the arena socket" if ticket is None else "connect again"
            raise PermissionDenied(
                f"expected a ticket that names your user, because several users share this daemon, got {got}",
                hint=hint,
                stage="serve",
            )
        return Caller(owner or Owner.of_this_process(), administers=self._one_user)

    def admin(self, context: CallContext | Any, what: str) -> Caller:  # noqa: ANN401 - see ``of``
        """Return who sent a call that only administrators may send.

        Args:
            context: the call.
            what: the action, for the message: "draining".

        Raises:
            PermissionDenied: the caller does not administer the daemon.
        """
        caller = self.of(context)
        if not caller.administers:
            where = f"use the admin socket {self._admin_socket}" if self._admin_socket else "set security.admin_socket"
            raise PermissionDenied(
                f"expected an administrator for {what}, got {caller.owner}",
                hint=f"{where}, as root or as the daemon's user",
                stage="serve",
            )
        return caller


def _of_certificate(facts: Mapping[str, Iterable[bytes]]) -> Owner:
    """Return the owner for what TLS told: the certificate's common name, else its first alternative name."""
    for name in ("x509_common_name", "x509_subject_alternative_name"):
        for value in facts.get(name, ()):
            return Owner("subject", value.decode("utf-8", "replace"))
    return Owner("tcp")
