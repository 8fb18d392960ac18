"""Who may see the status pages: requests that have the token in their path see everything."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_TOKEN_BYTES: Final = 18
_SUFFIX: Final = ".page"
_UNIX: Final = "unix://"


@dataclass(frozen=True, slots=True)
class PageAccess:
    """The token of the status pages.

    Attributes:
        token: the first part of the path of trusted requests; empty: all requests are trusted, as at the sockets of
            lanes, which only their supervisor can open.
        public: other requests see metrics, health, and the page without names of data; else they see nothing.
    """

    token: str = field(repr=False)
    public: bool = True

    @classmethod
    def fresh(cls, *, public: bool) -> PageAccess:
        """Return access with a new random token."""
        return cls(secrets.token_urlsafe(_TOKEN_BYTES), public)

    def split(self, path: str) -> tuple[bool, str | None]:
        """Return whether a request is trusted, and the name of what it asks for; None: it must not know.

        The comparison takes the same time for all wrong tokens.
        """
        path = path.removeprefix("/")
        if not self.token:
            return True, path
        first, slash, rest = path.partition("/")
        if hmac.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            return True, rest if slash else None
        return False, path if self.public else None

    def url(self, bound: str) -> str:
        """Return the address of the page with its token, for the bound address of the status pages."""
        return f"http://{bound}/{self.token}/"


def page_file(address: str) -> Path | None:
    """Return the file beside a Unix socket that holds the address of the page; None: the address is no socket."""
    return Path(f"{address.removeprefix(_UNIX)}{_SUFFIX}") if address.startswith(_UNIX) else None


@asynccontextmanager
async def noted_page(addresses: Iterable[str], url: str) -> AsyncIterator[None]:
    """Keep the address of the page beside the first Unix socket, for the daemon's user and root only.

    The file goes with the daemon, unless a successor has replaced it.
    """
    path = next(filter(None, map(page_file, addresses)), None)
    if path is None:
        yield
        return
    with contextlib.suppress(OSError):  # then only the terminal, or the log of the trainer, has told the address
        await LOCAL_FILES.run(_write, path, url)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            await LOCAL_FILES.run(_remove, path, url)


def _write(path: Path, url: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"{url}\n")
    draft.replace(path)


def _remove(path: Path, url: str) -> None:
    if path.read_text(encoding="utf-8", errors="replace").strip() == url:
        path.unlink()
