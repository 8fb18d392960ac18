"""Channels that a command serves are in ``inputdataconfig.json`` while it runs, and not afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd.channels.announcement import announced
from feedd.channels.channel import Channel, Distribution, InputMode, RecordWrapper
from feedd.channels.job import Job

if TYPE_CHECKING:
    from pathlib import Path

OTHER = {"validation": {"TrainingInputMode": "File", "ContentType": "text/csv"}}


def _file(root: Path, content: Any = None) -> Path:
    folder = root / "input" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "inputdataconfig.json"
    if content is not None:
        path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("before", [None, {}, OTHER])
def test_added_and_removed(tmp_path: Path, before: Any) -> None:
    """Other entries stay, and so does a file that was there; PipeModeDataset finds channel and mode."""
    path = _file(tmp_path, before)
    channel = Channel(
        "train", distribution=Distribution.SHARDED, record_wrapper=RecordWrapper.RECORDIO, content_type="text/csv"
    )
    with announced(tmp_path, [channel], InputMode.PIPE):
        found = json.loads(path.read_text())
        assert found.pop("train") == {
            "ContentType": "text/csv",
            "RecordWrapperType": "RecordIO",
            "S3DistributionType": "ShardedByS3Key",
            "TrainingInputMode": "Pipe",
            "AddedBy": "feedd",
        }
        assert found == (before or {})
        assert [*Job.read(tmp_path, {}).known] == [*(before or {})]  # what feedd added is no part of the job
    assert (json.loads(path.read_text()) if path.exists() else None) == before
    assert [one.name for one in path.parent.iterdir()] == ([path.name] if before is not None else [])


def test_what_a_killed_command_left(tmp_path: Path) -> None:
    """Its entries are replaced, and then removed."""
    path = _file(tmp_path, {"old": {"TrainingInputMode": "Pipe", "AddedBy": "feedd"}, **OTHER})
    with announced(tmp_path, [Channel("train")], InputMode.PIPE):
        assert sorted(json.loads(path.read_text())) == ["train", "validation"]
    assert json.loads(path.read_text()) == OTHER


def test_entries_of_the_job_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A channel that the file names is not changed; another mode is a warning."""
    path = _file(tmp_path, OTHER)
    with announced(tmp_path, [Channel("validation")], InputMode.PIPE):
        assert json.loads(path.read_text()) == OTHER
    assert "names another input mode" in "".join(capfd.readouterr())


def test_a_file_that_cannot_be_changed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A warning, and the command goes on."""
    (tmp_path / "input").write_text("")
    (root := tmp_path / "blocked").mkdir()
    (root / "input").mkdir()
    (root / "input" / "config").symlink_to("/proc/self/fdinfo")  # a folder in which nobody creates files
    with announced(root, [Channel("train")], InputMode.PIPE):
        pass
    assert "channels are not in inputdataconfig.json" in "".join(capfd.readouterr())


def test_the_list_of_a_request(tmp_path: Path) -> None:
    """Only feedd reads that form, so nothing is added."""
    path = _file(tmp_path, [{"ChannelName": "train"}])
    with announced(tmp_path, [Channel("other")], InputMode.PIPE):
        assert json.loads(path.read_text()) == [{"ChannelName": "train"}]
