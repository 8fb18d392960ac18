"""Ceph's radosgw as the server of ``python -m tests.bench.ingest``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer

from feedd.errors import BadConfig
from tests.bench.harness import Outcome
from tests.bench.ingest.__main__ import ingest
from tests.bench.ingest.contenders import line_up
from tests.bench.ingest.options import IngestOptions
from tests.bench.ingest.radosgw import Radosgw
from tests.bench.ingest.run import RADOSGW_HTTP, RADOSGW_TLS, Section
from tests.bench.ingest.store import Place, make_objects
from tests.bench.ingest.tables import results
from tests.bench.procs import cpu_s_of, descendants

if TYPE_CHECKING:
    from pathlib import Path

_PLACE = Place("http://127.0.0.1:1", "us-east-1", "bench", "", (("a", 10**9),), {})


def _place(root: Path) -> Place:
    return make_objects(root / "root", 1000, 1000)


def test_missing_programs_are_named_with_the_packages_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the programs nothing starts, and the error tells which packages to install."""
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "ceph-osd" else f"/usr/bin/{program}")
    folder = tmp_path / "ceph"
    folder.mkdir()
    with (
        pytest.raises(BadConfig, match="did not find ceph-osd - install them: apt-get install") as caught,
        Radosgw(folder, _place(tmp_path)),
    ):
        pass
    assert "ceph-osd" in str(caught.value.hint)
    assert not list(folder.iterdir())


def test_a_folder_with_a_long_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    gateway = Radosgw(tmp_path / ("x" * 107), _place(tmp_path))
    with pytest.raises(BadConfig, match="at most 107 bytes") as caught, gateway:
        pass
    assert "--dir" in str(caught.value.hint)


@pytest.mark.parametrize("other", [{"url": "s3://bucket/"}, {"delayed": "2%"}, {"errors": "5%"}])
def test_options_of_other_servers_are_refused(other: dict[str, str]) -> None:
    """Faults are our own server's, and a URL names a server of the user's."""
    with pytest.raises(typer.BadParameter):
        ingest(server="radosgw", **other)  # type: ignore[arg-type]  # all of them are text


def test_only_the_named_arms_take_part(tmp_path: Path) -> None:
    """Arms take part by name, and an unknown name is an error that tells the known ones."""
    lineup = line_up(IngestOptions(tmp_path, arms=("feedd", "server's limit")))
    assert [contender.name for contender in lineup.contenders] == ["server's limit", "feedd"]
    with pytest.raises(BadConfig, match="feedd, 64 parts in flight, got obstore"):
        line_up(IngestOptions(tmp_path, arms=("obstore",)))


@pytest.mark.parametrize("name", [RADOSGW_HTTP, RADOSGW_TLS])
def test_on_radosgw_the_target_is_nine_tenths_of_the_cheapest(name: str) -> None:
    """Plain and over TLS, feedd may need 0.9 of the cheapest peer's CPU."""
    arms = [Outcome(arm, rounds=[{"rate": 1e9, "cpu_per_gb": cost}]) for arm, cost in (("feedd", 0.9), ("awscrt", 1.0))]
    verdicts = {verdict.text: verdict for verdict in results([Section(name, _PLACE, None, arms)])[0].verdicts}
    assert verdicts["CPU per GB over awscrt, the cheapest"].met
    arms[0].rounds[0]["cpu_per_gb"] = 0.91
    verdicts = {verdict.text: verdict for verdict in results([Section(name, _PLACE, None, arms)])[0].verdicts}
    assert not verdicts["CPU per GB over awscrt, the cheapest"].met


def test_cpu_of_processes_is_counted() -> None:
    """Processes that ended count nothing."""
    with subprocess.Popen([sys.executable, "-c", "sum(range(20_000_000)); input()"], stdin=subprocess.PIPE) as busy:
        assert busy.stdin is not None
        before = cpu_s_of([busy.pid, 2**22])
        busy.stdin.write(b"\n")
        busy.stdin.flush()
        os.waitid(os.P_PID, busy.pid, os.WEXITED | os.WNOWAIT)
        assert cpu_s_of([busy.pid, 2**22]) > before
    assert cpu_s_of([busy.pid]) == 0


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("radosgw") is None, reason="needs radosgw")
@pytest.mark.parametrize("shard_size", ["3MiB", "100KiB"])
def test_a_small_run_brings_the_right_bytes(short_dir: Path, shard_size: str) -> None:
    """Plain and over TLS, shards and packs come whole; no process and no file stays."""
    found = short_dir / "found.json"
    words = ["--size", "5MiB", "--shard-size", shard_size, "--part-size", "1MiB", "--rounds", "1", "--tls"]
    words += ["--server", "radosgw", "--dir", str(short_dir), "--json", str(found), "--arm", "feedd"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.ingest", *words], check=False, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in short_dir.iterdir()] == ["found.json"]
    assert not descendants(os.getpid())
    tables = json.loads(found.read_text())["tables"]
    assert set(tables) == {"ingest, radosgw, http", "ingest, radosgw, tls"}
    for table in tables.values():
        (feedd,) = table["outcomes"]
        assert not feedd["failure"]
        row = feedd["rounds"][0]
        assert row["gets"] >= 5
        assert row["sent_bytes"] + row["gets"] >= 5 << 20  # the gateway counts a byte less for each GET
