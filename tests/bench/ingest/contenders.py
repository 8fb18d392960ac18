"""Who takes part, in which interpreter, and who cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedd.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.ingest.options import IngestOptions

FEEDD = "feedd"
FEEDD_WIDE = "feedd, 64 parts in flight"
WIDE_PARTS = 64
LIMIT = "server's limit"
LIMIT_DISCARD = "server's limit, nothing copied"
AIOBOTOCORE = "aiobotocore"
RECYCLED = "recycled: feedd, its cache full"
RECYCLED_AIOBOTOCORE = "recycled: aiobotocore"
RECYCLED_BEST_OF = ("recycled: obstore", "recycled: boto3")
BEST_OF = ("obstore", "boto3", "boto3 download_file", "awscrt", "s3torchconnector")
_CHECKOUT_PEERS = Path(__file__).resolve().parents[3] / ".venv-bench" / "bin" / "python"
_SYSTEM_TRUST = Path("/etc/ssl/certs/ca-certificates.crt")
_PROBE_S = 120.0
_PROBE = """
import importlib, importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found[name] = importlib.metadata.version(name)
    except Exception as error:
        found[name] = None
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the table.

    Attributes:
        name: what the table calls it.
        arm: module of ``tests.bench.ingest.arms`` without ``_arm``.
        package: what its interpreter must have; empty: nothing that feedd does not bring.
        own: settings of its own.
        recycled: over files that are there already.
        parts_in_flight: instead of the run's.
        on_system_trust: can trust no certificates but the system's.
        stops_at_plain: makes no sense over TLS.
    """

    name: str
    arm: str
    package: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    recycled: bool = False
    parts_in_flight: int = 0
    on_system_trust: bool = False
    stops_at_plain: bool = False


_OURS = (Contender(FEEDD, "feedd"),)
_LIMITS = (
    Contender(LIMIT, "drain"),
    Contender(LIMIT_DISCARD, "drain", own={"discard": True}, stops_at_plain=True),
)
_WIDE = (Contender(FEEDD_WIDE, "feedd", parts_in_flight=WIDE_PARTS),)
_PEERS = (
    Contender("obstore", "obstore", "obstore"),
    Contender("boto3", "boto3", "boto3"),
    Contender("boto3 download_file", "s3transfer", "boto3"),
    Contender("awscrt", "awscrt", "awscrt"),
    Contender("s3torchconnector", "s3torchconnector", "s3torchconnector", on_system_trust=True),
    Contender(AIOBOTOCORE, "aiobotocore", "aiobotocore"),
)
_RECEIVERS = (
    Contender("receiver: threads, MSG_WAITALL", "threads"),
    Contender("receiver: BufferedProtocol, uvloop", "protocol"),
    Contender("receiver: threads, splice", "splice", stops_at_plain=True),
)
_RECYCLED = (
    Contender(RECYCLED, "feedd", recycled=True),
    Contender("recycled: threads, MSG_WAITALL", "threads", recycled=True),
    Contender("recycled: BufferedProtocol", "protocol", recycled=True),
    Contender("recycled: threads, splice", "splice", recycled=True, stops_at_plain=True),
)
_RECYCLED_PEERS = (
    Contender("recycled: obstore", "obstore", "obstore", recycled=True),
    Contender("recycled: boto3", "boto3", "boto3", recycled=True),
    Contender(RECYCLED_AIOBOTOCORE, "aiobotocore", "aiobotocore", recycled=True),
)


@dataclass(frozen=True, slots=True)
class Lineup:
    """Who takes part in a section.

    Attributes:
        contenders: in the order of their turns.
        python: the peers' interpreter.
        versions: of the peers that are there.
        missing: packages that are not.
    """

    contenders: tuple[Contender, ...]
    python: Path
    versions: dict[str, str]
    missing: tuple[str, ...]

    def interpreter(self, contender: Contender) -> Path:
        """Return the Python that runs it."""
        return self.python if contender.package else Path(sys.executable)


def line_up(options: IngestOptions) -> Lineup:
    """Return who takes part; peers that are not installed are named.

    Raises:
        BadConfig: ``options.arms`` has a name that is no contender's.
    """
    python = options.peers_python or (_CHECKOUT_PEERS if _CHECKOUT_PEERS.exists() else Path(sys.executable))
    wanted = list(_OURS)
    if not options.faulty:
        own_server = _LIMITS if not options.url else ()
        wanted = [*own_server, *_OURS, *_WIDE]
        if options.receivers and not options.url:
            wanted += _RECEIVERS
        if options.recycled:
            wanted += _RECYCLED if not options.url else _RECYCLED[:1]
    versions: dict[str, str | None] = {}
    if options.peers:
        wanted += _PEERS
        if options.recycled and not options.faulty:
            wanted += _RECYCLED_PEERS
    wanted = _chosen(wanted, options.arms)
    if options.peers:
        versions = _versions(python, sorted({one.package for one in wanted if one.package}))
    missing = tuple(name for name, version in versions.items() if version is None)
    found = {name: version for name, version in versions.items() if version is not None}
    return Lineup(tuple(one for one in wanted if one.package not in missing), python, found, missing)


def _chosen(contenders: list[Contender], names: tuple[str, ...]) -> list[Contender]:
    known = [contender.name for contender in contenders]
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = "peers take part with --peers, recycled rows with --recycled"
        raise BadConfig(f"expected arms among {', '.join(known)}, got {', '.join(unknown)}", hint=hint, stage="bench")
    return [contender for contender in contenders if not names or contender.name in names]


def _versions(python: Path, packages: list[str]) -> dict[str, str | None]:
    done = subprocess.run(
        [python, "-c", _PROBE, *packages], capture_output=True, text=True, check=False, timeout=_PROBE_S
    )
    if done.returncode:
        return dict.fromkeys(packages)
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def how_to_install(lineup: Lineup) -> str:
    """Say what is missing and the command that brings it."""
    names = " ".join(lineup.missing)
    brings = "python -m venv .venv-bench && .venv-bench/bin/pip install uvloop"
    return f"left out, not installed for {lineup.python.name}: {names}; {brings} {names}, and --peers-python"


def trusting_prefix(contender: Contender, ca_file: str) -> tuple[str, ...] | None:
    """Return what to run a contender under so that it trusts ``ca_file``; None where that cannot be.

    A client that reads nothing but the system's list gets one of its own, in a mount namespace.
    """
    if not ca_file or not contender.on_system_trust:
        return ()
    unshare = shutil.which("unshare")
    if unshare is None or not _SYSTEM_TRUST.exists():
        return None
    script = f'mount --bind "$0" {_SYSTEM_TRUST} && exec "$@"'
    words = (unshare, "--map-root-user", "--mount", "sh", "-c", script, ca_file)
    probe = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=_PROBE_S)
    return None if probe.returncode else words
