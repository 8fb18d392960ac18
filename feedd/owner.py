"""Who a connection belongs to. Sessions, shared memory, warm-ups and limits are an owner's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Owner:
    """A user of this machine, or the holder of a certificate.

    Attributes:
        kind: "uid": a user who connected through a Unix socket; "subject": the common name of a client's certificate;
            "tcp": anybody who connected over TCP and showed no certificate.
        name: the user id in decimal, or the common name; empty for "tcp".
    """

    kind: Literal["uid", "subject", "tcp"]
    name: str = ""

    @classmethod
    def of_uid(cls, uid: int) -> Owner:
        """Return the owner for a user id."""
        return cls("uid", str(uid))

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return the owner for the user that this process runs as."""
        return cls.of_uid(os.geteuid())

    @property
    def section(self) -> str:
        """The owner's name in the configuration: ``owners.1000``, ``owners.trainer-a`` or ``owners.tcp``.

        A certificate whose common name looks like another kind of owner has the prefix ``cn:``.
        """
        if self.kind == "subject" and (self.name.isdigit() or self.name in {"", "tcp"}):
            return f"cn:{self.name}"
        return self.name or self.kind

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "a TCP client without a certificate"
