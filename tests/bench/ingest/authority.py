"""An authority of its own and its certificate for loopback, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadConfig

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINE_S = 30.0
_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: a server's certificate and key, and the authority that clients trust."""

    cert: Path
    key: Path
    authority: Path


def make_certificate(folder: Path) -> Certificate:
    """Write them for 127.0.0.1. A certificate that signs itself would not do: some clients refuse those.

    Raises:
        BadConfig: there is no openssl command, or it fails.
    """
    made = Certificate(folder / "server.pem", folder / "server.key", folder / "authority.pem")
    authority_key = folder / "authority.key"
    words = ["-subj", "/CN=feedd bench authority", "-addext", "basicConstraints=critical,CA:TRUE"]
    _openssl(*words, "-keyout", str(authority_key), "-out", str(made.authority))
    words = ["-subj", "/CN=feedd bench", "-addext", "basicConstraints=critical,CA:FALSE"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    words += ["-CA", str(made.authority), "-CAkey", str(authority_key)]
    _openssl(*words, "-keyout", str(made.key), "-out", str(made.cert))
    return made


def _openssl(*words: str) -> None:
    command = shutil.which("openssl")
    if command is None:
        raise BadConfig("expected the openssl command, got none", hint="install openssl, or leave out --tls")
    request = [command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    done = subprocess.run(
        [*request, "-days", _DAYS, *words], capture_output=True, text=True, check=False, timeout=_DEADLINE_S
    )
    if done.returncode:
        raise BadConfig(f"expected a certificate from openssl, got: {done.stderr.strip()[-300:]}", hint="OpenSSL 3 can")
