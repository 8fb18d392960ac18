"""``feedd support``: what it packs, and what it leaves out."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.fakes import forks

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.e2e.conftest import Standing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon")]
SECRETS = ("wJalrXUtnFEMI/K7MDENG", "hunter2hunter2", "top-secret-token")


def _support(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return forks.run(["support", *arguments], {**os.environ, **(env or {})})


def _parts(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {name.removeprefix("feedd-support/"): part.read().decode() for name, part in members if part is not None}


def test_a_bundle_has_what_a_question_needs_and_no_secret(one_daemon: Standing, short_dir: Path) -> None:
    """Versions, configuration with origins, checks, metrics; nothing of credentials or of URLs with passwords."""
    target = short_dir / "bundle.tar.gz"
    config = short_dir / "feedd.toml"
    config.write_text(f'[s3.bucket]\nendpoint_url = "http://user:{SECRETS[1]}@127.0.0.1:9"\n')
    env = {"AWS_SECRET_ACCESS_KEY": SECRETS[0], "FEEDD_TOKEN_OF_SOMEBODY": SECRETS[2]}
    del env["FEEDD_TOKEN_OF_SOMEBODY"]  # no option has this name, which the command would say
    done = _support(str(target), "--address", one_daemon.daemon.address, "--config", str(config), env=env)
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    parts = _parts(target)
    assert set(parts) == {"versions.txt", "config.txt", "check.txt", "daemon.json"}
    assert "feedd: " in parts["versions.txt"]
    assert "cache.size = " in parts["config.txt"]
    assert "worker sandbox" in parts["check.txt"]
    told = json.loads(parts["daemon.json"])
    assert told["state"] == "ready"
    assert any(sample["name"] == "feedd_serve_sessions" for sample in told["samples"])
    whole = "".join(parts.values())
    assert not [secret for secret in SECRETS if secret in whole]


def test_without_a_daemon_the_rest_is_packed(short_dir: Path) -> None:
    """The reason stands where its answer would be. A file that others made there is replaced, not written to."""
    target, other = short_dir / "bundle.tar.gz", short_dir / "other"
    other.write_text("mine")
    other.chmod(0o666)
    target.hardlink_to(other)
    done = _support(str(target), "--address", f"unix://{short_dir}/none.sock")
    assert done.returncode == 0, done.stderr
    assert "warning: without the daemon's metrics and sessions: no daemon answers" in done.stderr
    assert (other.read_text(), target.stat().st_mode & 0o777) == ("mine", 0o600)
    assert "no daemon answers" in json.loads(_parts(target)["daemon.json"])["error"]
