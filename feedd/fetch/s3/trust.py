"""The authorities that the direct S3 reader trusts; a bundle that changes is read again."""

from __future__ import annotations

import contextlib
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.fetch.once import Once
from feedd.flow.file_versions import file_version
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.file_versions import FileVersion

_LOOK_S: Final = 60.0
"""How long a bundle is used before its file is looked at again."""


class Trust:
    """A TLS context for one store.

    Authorities that a bundle gains count for connections made later. Those that it loses count until the context goes,
    because a context in use cannot forget.

    Args:
        authorities: returns the path of the bundle, a file or a folder.
    """

    def __init__(self, authorities: Callable[[], str]) -> None:
        self._authorities = authorities
        self._context: Once[tuple[str, ssl.SSLContext]] = Once(lambda: LOCAL_FILES.run(self._make))
        self._version: FileVersion | None = None
        self._looked_s = 0.0

    async def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises:
            OSError: the bundle cannot be read.
        """
        path, context = await self._context.get()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            await LOCAL_FILES.run(self._renew, path, context)
        return context

    def _make(self) -> tuple[str, ssl.SSLContext]:
        path = self._authorities()
        many = Path(path).is_dir()
        context = ssl.create_default_context(cafile=None if many else path, capath=path if many else None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with contextlib.suppress(OSError):  # removed since it was read
            self._version = file_version(path)
        self._looked_s = time.monotonic()
        return path, context

    def _renew(self, path: str, context: ssl.SSLContext) -> None:
        try:
            version = file_version(path)
            if version == self._version:
                return
            many = Path(path).is_dir()
            context.load_verify_locations(cafile=None if many else path, capath=path if many else None)
        except (OSError, ssl.SSLError):
            return  # in the middle of a rotation; the next look reads it
        self._version = version
