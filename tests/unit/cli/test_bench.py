"""``feedd bench ingest URL``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from feedd.cli.app import app
from feedd.errors import BadConfig, BadRequest
from tests.fakes.s3.faults import slow_down
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("first_loop", "aws_credentials")
_OBJECTS = {f"train/{index}.tar": bytes([index]) * 400_000 for index in range(4)}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with four objects, which the environment names."""
    with S3Server() as server:
        for key, data in _OBJECTS.items():
            server.put("bucket", key, data)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


def _run(folder: Path, *arguments: str) -> str:
    runner = CliRunner(env={"COLUMNS": "200"})
    words = ["bench", "ingest", "s3://bucket/train/", "--dir", str(folder), *arguments]
    done = runner.invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_fetches_what_was_asked_for_and_leaves_nothing(store: S3Server, tmp_path: Path) -> None:
    """Whole objects up to the size, as often as said, and no file stays."""
    found = json.loads(_run(tmp_path, "--size", "700KB", "--rounds", "2", "--json"))
    assert [one["size_bytes"] for one in found["rounds"]] == [800_000, 800_000]
    assert [one["request_count"] for one in found["rounds"]] == [2, 2]
    assert all(one["wall_s"] > 0 and one["cpu_s"] > 0 and one["request_s"] > 0 for one in found["rounds"])
    assert sum(request.method == "GET" and "train/" in request.key for request in store.requests) == 4
    assert not list(tmp_path.iterdir())


def test_requests_that_were_sent_again_are_counted(store: S3Server, tmp_path: Path) -> None:
    """The table has a row for each round and the median, and tells retries."""
    store.script("bucket", "train/0.tar", slow_down())
    found = json.loads(_run(tmp_path, "--rounds", "1", "--json"))
    assert found["rounds"][0]["retry_count"] == 1
    table = _run(tmp_path, "--rounds", "1")
    assert "median" in table
    assert "fetch.parts_in_flight" in table


def test_a_size_of_nothing_is_refused(store: S3Server, tmp_path: Path) -> None:
    """Bad usage, before anything is fetched."""
    with pytest.raises(BadConfig, match="expected a size above 0, got 0"):
        _run(tmp_path, "--size", "0")
    assert not store.requests


@pytest.mark.usefixtures("store")
def test_too_little_space_is_said_with_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is too full, or missing, is named."""
    monkeypatch.setattr("feedd.cli.bench._MARGIN_BYTES", 1 << 60)
    with pytest.raises(BadConfig, match="free in"):
        _run(tmp_path)
    with pytest.raises(BadConfig, match="expected a folder"):
        _run(tmp_path / "none")


def test_empty_objects_are_nothing_to_measure(store: S3Server, tmp_path: Path) -> None:
    """Without a byte there is no rate."""
    for key in _OBJECTS:
        store.put("bucket", key, b"")
    with pytest.raises(BadRequest, match="or all are empty"):
        _run(tmp_path)
