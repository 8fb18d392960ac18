"""``feedd pipe``: what its flags say, and what it refuses before it opens anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from feedd.channels.channel import Distribution, RecordWrapper
from feedd.cli import pipe
from feedd.cli.app import app
from feedd.errors import BadRequest
from feedd.pipes.channel_pipe import EpochEnding, PipeTotals

if TYPE_CHECKING:
    from pathlib import Path

URL = "train=s3://bucket/train/"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Take what would be served, in place of serving it."""
    found: list[Any] = []

    def run(*arguments: Any) -> tuple[dict[str, PipeTotals], str]:
        found.extend(arguments)
        epochs = {ending: int(ending is EpochEnding.WHOLE) * 2 for ending in EpochEnding}
        return {"train": PipeTotals(epochs, 7, 3 << 20)}, "SIGTERM"

    monkeypatch.setattr(pipe, "_run", run)
    monkeypatch.setattr(pipe, "configure_logging", lambda *_, **__: None)  # the runner's streams end with each test
    return found


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["pipe", *arguments])


def test_flags_reach_the_channels(served: list[Any], tmp_path: Path) -> None:
    """Channel, nodes and memory; at the end a line tells what the readers got."""
    arguments = [
        "--sharding",
        "key",
        "--nodes",
        "4",
        "--node-rank",
        "2",
        "--seed",
        "-5",
        "--record-wrapper",
        "RecordIO",
    ]
    result = _invoke("--root", str(tmp_path), "--channel", URL, *arguments, "--buffer", "64MiB")
    assert result.exit_code == 0, result.output
    root, (channel,), cluster, buffer_bytes, _ = served
    assert (root, buffer_bytes) == (tmp_path, 64 << 20)
    assert (channel.distribution, channel.seed, channel.record_wrapper) == (
        Distribution.SHARDED,
        -5,
        RecordWrapper.RECORDIO,
    )
    assert cluster.node_of(channel) == (4, 2)
    assert "feedd: train: 2 epochs (2 whole), 7 objects, 3MiB" in result.stderr


def test_only_channels_in_pipe_mode(served: list[Any], tmp_path: Path) -> None:
    """Of a job's file, channels of other modes are left out, and a line says so; with --channel the mode is yours."""
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    modes = {"train": "pipe", "test": "File", "other": None}
    entries = {
        name: {"S3Uri": f"s3://b/{name}", **({"TrainingInputMode": mode} if mode else {})}
        for name, mode in modes.items()
    }
    (folder / "inputdataconfig.json").write_text(json.dumps(entries))
    result = _invoke("--root", str(tmp_path))
    assert [channel.name for channel in served[1]] == ["train", "other"]
    assert "channel test is in File mode" in result.stderr
    served.clear()
    _invoke("--root", str(tmp_path), "--channel", "test=s3://b/test")
    assert [channel.name for channel in served[1]] == ["test"]
    (folder / "inputdataconfig.json").write_text(json.dumps({"test": entries["test"]}))
    result = _invoke("--root", str(tmp_path))
    assert isinstance(result.exception, BadRequest)
    assert "expected a channel in Pipe mode" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--channel", URL, "--nodes", "2"], "--nodes and --node-rank together"),
        (["--channel", URL, "--node-rank", "1"], "--nodes and --node-rank together"),
        (["--channel", URL, "--nodes", "2", "--node-rank", "2"], "expected --node-rank below --nodes 2, got 2"),
        (["--channel", URL, "--buffer", "1KiB"], "at least 1MiB"),
        (["--channel", URL, "--buffer", "much"], "expected a number"),
        (["--channel", "train"], "expected --channel NAME=URL, got 'train'"),
        ([], "expected a channel, got none"),
        (["--channel", "train=augmented+s3://b/m"], "expected AttributeNames for an augmented manifest"),
    ],
)
def test_what_is_refused(served: list[Any], tmp_path: Path, arguments: list[str], message: str) -> None:
    """Nothing is served, and the message says what was expected."""
    result = _invoke("--root", str(tmp_path), *arguments)
    text = " ".join(f"{result.stderr} {result.exception}".replace("│", " ").split())
    assert message in text
    assert not served
    assert result.exit_code == 2 or isinstance(result.exception, BadRequest)
