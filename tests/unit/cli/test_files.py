"""``feedd files`` over local folders: what it puts where, what it says, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Feedd

pytestmark = pytest.mark.usefixtures("first_loop")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with five files."""
    folder = tmp_path / "source"
    for number in range(5):
        path = folder / f"class{number % 2}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * number)
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def test_channels_of_flags(feedd: Feedd, source: Path, tmp_path: Path) -> None:
    """Each channel in a folder of its own; a second run has nothing to do; the JSON counts both."""
    root = tmp_path / "ml"
    arguments = ("files", "--root", root, "--channel", f"train={source}", "--channel", f"one={source}/class1/3.bin")
    done = feedd(*arguments)
    assert done.code == 0, done.err
    assert _files(root / "input/data/train") == _files(source)
    assert _files(root / "input/data/one") == {"3.bin": b"\3\3\3"}
    assert f"channel train: 5 files (10B) in {root}/input/data/train: 5 fetched\n" in done.err
    facts = json.loads(feedd(*arguments, "--json").out)
    assert not facts["stopped"]
    assert {name: (one["files"], one["present"], one["fetched"]) for name, one in facts["channels"].items()} == {
        "train": (5, 5, 0),
        "one": (1, 1, 0),
    }


def test_channels_of_a_job(feedd: Feedd, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without flags, the files of a container say everything: hosts share the objects, Pipe channels get no files."""
    config = {
        "train": {"TrainingInputMode": "File", "S3DistributionType": "ShardedByS3Key"},
        "test": {"TrainingInputMode": "FastFile"},
        "pipe": {"TrainingInputMode": "Pipe"},
    }
    monkeypatch.setenv("FEEDD_CHANNELS", json.dumps(dict.fromkeys(config, f"{source}/")))
    found = []
    for host in ("algo-1", "algo-2"):
        root = tmp_path / host
        (root / "input/config").mkdir(parents=True)
        (root / "input/config/inputdataconfig.json").write_text(json.dumps(config))
        hosts = {"current_host": host, "hosts": ["algo-1", "algo-2"]}
        (root / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
        done = feedd("files", "--root", root)
        assert done.code == 0, done.err
        assert "channel pipe: the job reads it in Pipe mode" in done.err
        assert not (root / "input/data/pipe").exists()
        assert _files(root / "input/data/test") == _files(source)
        found.append(_files(root / "input/data/train"))
    assert [len(node) for node in found] == [3, 2]
    assert found[0] | found[1] == _files(source)
    assert feedd("files", "--root", root, "--nodes", "1").code == 0
    assert _files(root / "input/data/train") == _files(source)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "expected a channel, got none"),
        (("--channel", "train"), 2, "expected --channel NAME=URL"),
        (("--channel", "a/b=SOURCE"), 2, "expected a channel's name"),
        (("--channel", "train=SOURCE/none"), 1, "expected at least one object, got none [SOURCE/none]"),
        (("--channel", "train=SOURCE", "--nodes", "2"), 2, "--nodes and --node-rank together"),
        (("--channel", "train=SOURCE", "--nodes", "2", "--node-rank", "2"), 2, "below --nodes 2"),
        (("--channel", "train=SOURCE", "--compression", "Gzip"), 2, "which is for Pipe mode"),
        (("--channel", "train=SOURCE", "--sharding", "size"), 2, "key, replicated"),
    ],
)
def test_wrong_usage(
    feedd: Feedd, source: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """The error says what was expected; no directory is made."""
    done = feedd("files", "--root", tmp_path / "ml", *(one.replace("SOURCE", str(source)) for one in arguments))
    assert (done.code, done.out) == (code, "")
    assert said.replace("SOURCE", str(source)) in done.err
    assert not (tmp_path / "ml/input/data").exists()


def test_other_files_are_left_alone(feedd: Feedd, source: Path, tmp_path: Path) -> None:
    """What lies in a channel's directory and is not the channel's is an error that names it."""
    stray = tmp_path / "ml/input/data/train/notes.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text("mine")
    done = feedd("files", "--root", tmp_path / "ml", "--channel", f"train={source}")
    assert done.code == 2
    assert "got also notes.txt" in done.err
    assert _files(stray.parent) == {"notes.txt": b"mine"}
