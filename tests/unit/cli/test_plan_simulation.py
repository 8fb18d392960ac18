"""``feedd plan --simulate``: data that does not exist and data that does, files, and wrong flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cv2
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Feedd

_SYNTHETIC = ("--shards", "64", "--shard-size", "1MiB", "--samples-per-shard", "64", "--batch-size", "16")
_MACHINE = ("--workers", "4", "--cache-size", "1GiB", "--request-limit", "0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """16 shards of 64 KiB."""
    found = tmp_path / "data"
    found.mkdir()
    for number in range(16):
        (found / f"{number:02}.tar").write_bytes(bytes(64 << 10))
    return found


def _simulated(feedd: Feedd, *words: str | Path) -> dict[str, Any]:
    outcome = feedd("plan", "--simulate", "--json", *words)
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_data_that_does_not_exist(feedd: Feedd) -> None:
    """Every shard is fetched once in the first epoch, and found in the second; assumptions tell where they are from."""
    found = _simulated(feedd, *_SYNTHETIC, *_MACHINE, "--nodes", "4", "--ranks", "2", "--get-price", "1000")
    assert (found["objects"], found["bytes"], found["nodes"], found["steps"]) == (64, 64 << 20, 4, 32)
    first, second = found["epochs"]
    assert (first["gets"], first["heads"], first["lists"], first["fetched_bytes"]) == (64, 64, 4, 64 << 20)
    assert first["cost"] == pytest.approx(128 + 4 * 0.005 / 1000)
    assert (second["hit_rate"], second["gets"]) == (1.0, 0)
    assert [one["node"] for one in found["simulated"]] == [0, 1, 2, 3]
    origins = found["assumptions"]["origins"]
    assert origins["cache"] == "cache.size, flag --cache-size"
    assert origins["requests in flight"] == "fetch.parts_in_flight, this machine"
    assert "node_bytes" not in found


def test_data_that_exists(feedd: Feedd, folder: Path) -> None:
    """Sizes come from the listing, samples from ``--sample-size``: 16 shards of 64 samples make 8 steps of 128."""
    found = _simulated(feedd, f"{folder}/", *_MACHINE, "--sample-size", "1KiB", "--ranks", "1", "--batch-size", "128")
    assert (found["objects"], found["bytes"], found["steps"]) == (16, 1 << 20, 8)


def test_a_report_for_people(feedd: Feedd) -> None:
    """Assumptions, figures, epochs and nodes."""
    outcome = feedd("plan", "--simulate", *_SYNTHETIC, *_MACHINE, "--ranks", "1", "--epochs", "1", "--step-time", "1s")
    assert outcome.code == 0
    for text in ("decode.workers, flag --workers", "time to first batch", "found in the caches", "simulated nodes"):
        assert text in outcome.out


def test_charts(feedd: Feedd, tmp_path: Path) -> None:
    """A PNG of four charts that are not empty."""
    target = tmp_path / "charts.png"
    _simulated(feedd, *_SYNTHETIC, *_MACHINE, "--png", target)
    image = cv2.imread(str(target))
    assert image is not None
    assert image.shape == (900, 1600, 3)
    for top in (0, 450):
        for left in (0, 800):
            panel = image[top : top + 450, left : left + 800]
            assert (panel.astype(int).max(axis=2) - panel.min(axis=2) > 50).sum() > 500  # coloured lines or bars
    outcome = feedd("plan", "--simulate", *_SYNTHETIC, *_MACHINE, "--epochs", "1", "--png", tmp_path)
    assert (outcome.code, "cannot be written" in outcome.err) == (2, True)


def test_a_missing_folder_is_said_before_the_run(feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may take minutes: charts that have no folder are refused before it, and before the data is listed."""
    monkeypatch.setattr("feedd.cli.plan._listing", lambda *_: pytest.fail("the data was listed"))
    outcome = feedd("plan", "--simulate", *_SYNTHETIC, "--png", tmp_path / "no" / "charts.png")
    assert (outcome.code, "expected a file in a folder that exists" in outcome.err) == (2, True)


def test_fields_decide_the_bytes_of_a_batch(feedd: Feedd) -> None:
    """16 pictures of 8 by 8 take 3,072 bytes; without fields, a batch is as large as its samples are stored."""
    short = (*_SYNTHETIC, *_MACHINE, "--epochs", "1")
    told = _simulated(feedd, *short, "--fields", json.dumps({"jpg": "image:8x8"}))["assumptions"]["job"]
    assert told["batch_bytes"] == 16 * 8 * 8 * 3
    assert _simulated(feedd, *short)["assumptions"]["job"]["batch_bytes"] == 16 * (1 << 20) // 64
    outcome = feedd("plan", "--simulate", *_SYNTHETIC, "--fields", "jpg=image")
    assert (outcome.code, "expected a JSON object" in outcome.err) == (2, True)


def test_rates_from_a_bench(feedd: Feedd, tmp_path: Path) -> None:
    """The output of ``feedd bench ingest --json`` gives the rates of link and connection; other files are refused."""
    measured = {"size_bytes": 1000, "wall_s": 0.5, "request_count": 10, "request_s": 0.13}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"url": "s3://b/", "rounds": [measured] * 3}))
    words = (*_SYNTHETIC, "--latency", "30ms", "--epochs", "1", "--from-bench", path)
    found = _simulated(feedd, *words)["assumptions"]
    assert found["node"]["link_bytes_s"] == pytest.approx(2000.0)
    assert found["store"]["connection_bytes_s"] == pytest.approx(1000.0)
    assert found["origins"]["link of a node"] == str(path)
    path.write_text("{}")
    outcome = feedd("plan", "--simulate", *words)
    assert (outcome.code, "expected the output of feedd bench ingest --json" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--png", "x.png"), "expected --simulate with --png"),
        (("--simulate",), "expected URL or --shards with --simulate, got neither"),
        (("--simulate", "s3://b/", "--shards", "3"), "got both"),
        ((), "expected URL, got none"),
        (("--simulate", "--shards", "3", "--shard-size", "0"), "expected a size above 0"),
        (("--simulate", "--shards", "3", "--latency", "soon"), "expected a number with one of the units"),
    ],
)
def test_wrong_flags(feedd: Feedd, words: tuple[str, ...], message: str) -> None:
    """Each is refused with what was expected, and exit code 2."""
    outcome = feedd("plan", *words)
    assert (outcome.code, message in outcome.err) == (2, True), outcome.err


def test_objects_that_are_samples_are_refused(feedd: Feedd, tmp_path: Path) -> None:
    """The simulation has no packs: it would count a request for each, and none of their order."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(b"x" * 100)
    outcome = feedd("plan", "--simulate", f"{folder}/", *_MACHINE)
    assert outcome.code == 2
    assert "expected shards of several samples" in outcome.err


def test_a_cache_that_is_too_small_is_named(feedd: Feedd) -> None:
    """The daemon would end the epoch with the same error."""
    outcome = feedd("plan", "--simulate", *_SYNTHETIC, "--set", "cache.size=2MiB", "--workers", "1")
    assert (outcome.code, "raise --cache-size" in outcome.err) == (1, True)
