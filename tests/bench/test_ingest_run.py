"""``python -m tests.bench.ingest``: what it accepts, and a small run of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer

from tests.bench.ingest.__main__ import parse_share
from tests.bench.ingest.authority import make_certificate
from tests.bench.ingest.store import ServerProcess, make_objects
from tests.fakes.s3.draws import Odds

if TYPE_CHECKING:
    from pathlib import Path

_LIMIT_S = 1500.0  # a run of every arm computes all the time, and the machine may do other work
_SMALL = ("--size", "5MiB", "--shard-size", "3MiB", "--part-size", "1MiB", "--rounds", "1")


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench.ingest", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("text", "expected"), [("2%x50", (0.02, 50.0)), ("0.5%", (0.005, 50.0)), ("100%x2", (1.0, 2.0))]
)
def test_shares_as_people_write_them(text: str, expected: tuple[float, float]) -> None:
    """A share is in percent, with the factor behind an x."""
    assert parse_share(text, factor=True) == expected


@pytest.mark.parametrize("text", ["2", "x50", "101%", "5%x2"])
def test_anything_else_is_refused(text: str) -> None:
    """What is no share is a usage error."""
    with pytest.raises(typer.BadParameter):
        parse_share(text, factor=False)


def test_made_up_objects_have_the_sizes_asked_for(tmp_path: Path) -> None:
    """The last object has what is left, and no two begin alike."""
    place = make_objects(tmp_path, 2_500_000, 1_000_000)
    assert place.objects == (("shards/000000.tar", 10**6), ("shards/000001.tar", 10**6), ("shards/000002.tar", 500_000))
    heads = {(tmp_path / place.bucket / key).read_bytes()[:8] for key, _ in place.objects}
    assert len(heads) == 3
    assert all((tmp_path / place.bucket / key).stat().st_size == size for key, size in place.objects)


@pytest.mark.slow
def test_the_server_counts_what_it_serves(tmp_path: Path) -> None:
    """Over TLS that our own authority vouches for, requests and bytes are counted."""
    make_objects(tmp_path / "root", 1000, 1000)
    with ServerProcess(tmp_path / "root", Odds(), make_certificate(tmp_path)) as server:
        assert server.url.startswith("https://")
        assert server.served().get_count == 0


def _tables(place: Path, *arguments: str) -> dict[str, Any]:
    """Make a small run; return its tables: nothing else stays."""
    found = place / "found.json"
    done = _bench(*_SMALL, *arguments, "--dir", str(place), "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in place.iterdir()] == ["found.json"]
    tables: dict[str, Any] = json.loads(found.read_text())["tables"]
    return tables


@pytest.mark.nightly
def test_a_small_run_brings_the_right_bytes(tmp_path: Path) -> None:
    """Every arm brings the right bytes, and nothing stays but the JSON with its round."""
    tables = _tables(tmp_path)
    assert set(tables) == {"ingest, http"}
    outcomes = {one["name"]: one for one in tables["ingest, http"]["outcomes"]}
    assert all(not one["failure"] and len(one["rounds"]) == 1 for one in outcomes.values())
    assert outcomes["feedd"]["rounds"][0]["gets"] == 6  # a listing, one byte ahead of time, four parts


@pytest.mark.nightly
@pytest.mark.timeout(1600)
def test_a_small_run_gives_every_row(tmp_path: Path) -> None:
    """Every arm of our own brings the right bytes, plain and over TLS; nothing stays but the JSON with all rounds."""
    tables = _tables(tmp_path, "--tls", "--receivers", "--recycled")
    assert set(tables) == {"ingest, http", "ingest, tls"}
    outcomes = {one["name"]: one for one in tables["ingest, http"]["outcomes"]}
    assert "receiver: threads, splice" in outcomes
    assert all(not one["failure"] and len(one["rounds"]) == 1 for one in outcomes.values())
    assert outcomes["feedd"]["rounds"][0]["gets"] == 6  # a listing, one byte ahead of time, four parts


@pytest.mark.nightly
def test_a_run_with_faults_has_a_clean_one_beside_it(tmp_path: Path) -> None:
    """Delays and errors are sections of their own, and each is judged."""
    done = _bench(*_SMALL, "--delayed", "10%x2", "--errors", "10%", "--latency", "1ms", "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(name in done.stdout for name in ("ingest, clean", "ingest, delayed", "ingest, errors", "p99 over p50"))


@pytest.mark.slow
def test_too_little_room_is_said_before_anything_is_made(tmp_path: Path) -> None:
    """A size that does not fit is refused, with the figures."""
    done = _bench("--size", "900TiB", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "free in" in done.stderr
    assert not list(tmp_path.iterdir())
