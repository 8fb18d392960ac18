"""What connections to stores trust and show: authorities and client certificate, for the SDK and the direct reader."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.errors import BadConfig
from feedd.fetch.once import Once
from feedd.flow.file_versions import file_version
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.fetch_options import S3Options
    from feedd.flow.file_versions import FileVersion

_LOOK_S: Final = 60.0
"""How long a bundle is used before its file is looked at again."""
_VARIABLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")


def trusting(path: str, shown: Shown | None = None) -> ssl.SSLContext:
    """Return the TLS context of a file or a folder of certificates.

    All connections that trust and show the same files share a context, since reading the files takes 30 ms.

    Raises:
        BadConfig: a file is missing, cannot be read, or does not hold what it should.
    """
    versions = () if shown is None else shown.versions()
    try:
        return _trusting(path, file_version(path), shown, versions)
    except OSError as error:  # ssl.SSLError is one
        pem = (
            "it holds no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        )
        raise _unusable(path, pem) from error


@functools.lru_cache(maxsize=16)
def _trusting(
    path: str, _version: FileVersion, shown: Shown | None, _versions: tuple[FileVersion, ...]
) -> ssl.SSLContext:
    cafile, capath = _file_or_folder(path)
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if shown is not None:
        shown.load(context)
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


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificate that a client shows to a server that asks for one.

    Attributes:
        certificate: path of a PEM file with the certificate and those of its issuers.
        key: path of the PEM file with its private key; empty: ``certificate`` holds it.
    """

    certificate: str
    key: str = ""

    def versions(self) -> tuple[FileVersion, ...]:
        """Return the versions of the files; blocks.

        Raises:
            BadConfig: a file cannot be looked at.
        """
        return tuple(_version_of(option, path) for option, path in self._files())

    def load(self, context: ssl.SSLContext) -> None:
        """Let a context show the certificate; blocks.

        Raises:
            BadConfig: a file cannot be read, is no PEM file, is encrypted, or the key is another certificate's.
        """
        option, path = self._files()[-1]
        try:
            context.load_cert_chain(self.certificate, self.key or None, password=_no_passphrase)
        except _EncryptedError as error:
            raise _not_shown(option, path, "the key is encrypted: write it without a passphrase") from error
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                reason = f"the key does not belong to the certificate of {self.certificate}"
            elif _has_certificate(self.certificate):
                reason = "it holds no private key in PEM form"
            else:
                option, path, reason = *self._files()[0], "it holds no certificate in PEM form"
            raise _not_shown(option, path, reason) from error
        except OSError as error:
            for option, path in self._files():  # OpenSSL does not name the file
                _version_of(option, path)
            raise _not_shown(option, path, error.strerror or str(error)) from error

    def _files(self) -> list[tuple[str, str]]:
        named = [("client_certificate", self.certificate), ("client_key", self.key)]
        return [(option, path) for option, path in named if path]


class _EncryptedError(Exception):
    """A key needs a passphrase, which OpenSSL would ask of the terminal."""


def _no_passphrase() -> str:
    raise _EncryptedError


def _has_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return False
    return True


def _version_of(option: str, path: str) -> FileVersion:
    try:
        return file_version(path)
    except OSError as error:
        raise _not_shown(option, path, error.strerror or str(error)) from error


def _not_shown(option: str, path: str, reason: str) -> BadConfig:
    hint = f"correct {option} in the bucket's table of feedd.toml"
    return BadConfig(f"the client certificate cannot be used: {reason}", object=path, hint=hint, stage="source")


def shown_by(s3: S3Options) -> Shown | None:
    """Return the client certificate of a bucket; None: it has none."""
    return Shown(s3.client_certificate, s3.client_key or "") if s3.client_certificate else None


class Trust:
    """The TLS context for one store.

    Authorities that a bundle gains count for connections made later. Those that it loses count until the context goes,
    because a context in use cannot forget. A client certificate that changes counts for connections made later.

    Args:
        authorities: returns the path of the bundle, a file or a folder.
        shown: the client certificate; None: there is none.
    """

    def __init__(self, authorities: Callable[[], str], shown: Shown | None = None) -> None:
        self._authorities = authorities
        self._shown = shown
        self._context: Once[tuple[str, ssl.SSLContext]] = Once(lambda: LOCAL_FILES.run(self._make))
        self._version: FileVersion | None = None
        self._shown_versions: tuple[FileVersion, ...] = ()
        self._looked_s = 0.0

    async def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises:
            BadConfig: a file is missing, cannot be read, or does not hold what it should.
        """
        path, context = await self._context.get()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            await LOCAL_FILES.run(self._renew, path, context)
        return context

    def for_proxy(self) -> Trust:
        """Return the same trust for connections to a proxy, which does not get the client certificate."""
        return self if self._shown is None else Trust(self._authorities)

    def _make(self) -> tuple[str, ssl.SSLContext]:
        path = self._authorities()
        with contextlib.suppress(OSError, BadConfig):  # ``trusting`` tells what is wrong with it
            self._version = file_version(path)
            self._shown_versions = () if self._shown is None else self._shown.versions()
        context = trusting(path, self._shown)
        self._looked_s = time.monotonic()
        return path, context

    def _renew(self, path: str, context: ssl.SSLContext) -> None:
        self._renew_shown(context)
        try:
            version = file_version(path)
            if version == self._version:
                return
            context.load_verify_locations(*_file_or_folder(path))
        except (OSError, BadConfig):
            return  # in the middle of a rotation; the next look reads it
        self._version = version

    def _renew_shown(self, context: ssl.SSLContext) -> None:
        if self._shown is None:
            return
        try:
            versions = self._shown.versions()
            if versions == self._shown_versions:
                return
            self._shown.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # a half of a pair would spoil the one in use
            self._shown.load(context)
        except BadConfig:
            return  # in the middle of a rotation; the next look reads it
        self._shown_versions = versions
