"""The authorities that connections to stores trust, for the SDK and the direct reader alike."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.errors import BadConfig
from feedd.fetch.once import Once
from feedd.flow.file_versions import file_version
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.flow.file_versions import FileVersion

_LOOK_S: Final = 60.0
"""How long a bundle is used before its file is looked at again."""
_VARIABLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def trusting(path: str) -> ssl.SSLContext:
    """Return the TLS context of a file or a folder of certificates.

    All connections that trust the same file share a context, since reading the file takes 30 ms.

    Raises:
        BadConfig: the file is missing, cannot be read, or holds no certificates.
    """
    try:
        return _trusting(path, file_version(path))
    except OSError as error:  # ssl.SSLError is one
        pem = (
            "it holds no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        )
        raise _unusable(path, pem) from error


@functools.lru_cache(maxsize=4)
def _trusting(path: str, _version: FileVersion) -> ssl.SSLContext:
    cafile, capath = _file_or_folder(path)
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _file_or_folder(path: str) -> tuple[str | None, str | None]:
    """Return a file, or a folder whose names are hashes as OpenSSL looks them up; the other is None."""
    if not Path(path).is_dir():
        return path, None
    if not any(_HASHED.fullmatch(name) for name in os.listdir(path)):  # noqa: PTH208 - names are enough
        raise _unusable(path, "the folder holds no names like 1a2b3c4d.0; openssl rehash makes them")
    return None, path


def _unusable(path: str, reason: str) -> BadConfig:
    named = next((name for name in _VARIABLES if os.environ.get(name) == path), "")
    hint = f"correct {named or 'ca_bundle'}{'' if named else ' in feedd.toml or in the AWS profile'}"
    message = f"the file of certificate authorities cannot be used: {reason}"
    return BadConfig(message, object=path, hint=f"{hint}, which names it", stage="source")


class Trust:
    """The TLS context for one store.

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
            BadConfig: the bundle is missing, cannot be read, or holds no certificates.
        """
        path, context = await self._context.get()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            await LOCAL_FILES.run(self._renew, path, context)
        return context

    def _make(self) -> tuple[str, ssl.SSLContext]:
        path = self._authorities()
        with contextlib.suppress(OSError):  # ``trusting`` tells what is wrong with it
            self._version = file_version(path)
        context = trusting(path)
        self._looked_s = time.monotonic()
        return path, context

    def _renew(self, path: str, context: ssl.SSLContext) -> None:
        try:
            version = file_version(path)
            if version == self._version:
                return
            context.load_verify_locations(*_file_or_folder(path))
        except (OSError, BadConfig):
            return  # in the middle of a rotation; the next look reads it
        self._version = version
