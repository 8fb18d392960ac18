"""Runs the two scripts of a migration guide over the same data, and compares what both trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench.peers import PEER_VENV
from tests.docs.blocks import guide
from tests.docs.execute import EPOCHS, Job
from tests.docs.pictures import HEIGHT, WIDTH
from tests.docs.write_peer import SHARDS
from tests.e2e.daemon import free_port
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.docs.world import World

BATCH_SIZE: Final = 8
_LIMIT_S: Final = 240.0
_PEER_PYTHON: Final = PEER_VENV / "bin" / "python"


@dataclass(frozen=True)
class Guide:
    """How the scripts of a guide are made to run here.

    Attributes:
        before: texts of the script before, and what stands there instead; ``FOLDER`` is where the peer wrote.
        after: the same of the script after.
        arguments: command line of the script after.
        environment: of the script before; ``FOLDER`` is where the peer wrote.
        tail: code at the end of both scripts.
    """

    before: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    tail: str = ""


_SMALL: Final = {"batch_size=256": f"batch_size={BATCH_SIZE}"}


def guides(count: int) -> dict[str, Guide]:
    """Return the guides, for data of so many samples."""
    last = f"{SHARDS - 1:06d}"
    folder = {"/data/imagenet": "FOLDER/imagenet"}
    return {
        "imagefolder": Guide(_SMALL | folder, _SMALL, tail="print('counted', int(hits[1]))"),
        "torchvision-transforms": Guide(_SMALL | folder, _SMALL),
        "webdataset": Guide(
            {
                "1_281_167, 256": f"{count}, {BATCH_SIZE}",
                '"pipe:aws s3 cp s3://my-bucket/': '"FOLDER/',
                "{000000..001281}.tar -": f"{{000000..{last}}}.tar",
            },
            _SMALL | {"001281": last},
        ),
        "litdata": Guide(_SMALL | {"s3://my-bucket/": "FOLDER/"}, _SMALL),
        "mosaicml": Guide(_SMALL | {"s3://my-bucket/": "FOLDER/", '"/tmp/imagenet-mds"': '"LOCAL"'}, _SMALL),
        "hf-datasets": Guide(_SMALL | {"s3://my-bucket/": "FOLDER/"}, _SMALL),
        "sagemaker": Guide(
            _SMALL,
            _SMALL,
            ("--train-url", "s3://my-bucket/imagenet/train/"),
            {"SM_CHANNEL_TRAIN": "FOLDER/imagenet/train"},
        ),
    }


@dataclass(frozen=True)
class Trained:
    """What the ranks of a script trained on, in all epochs.

    Attributes:
        records: of the ranks, as ``tests.docs.execute`` writes them.
    """

    records: list[dict[str, Any]]

    def steps(self, rank: int, epoch: int) -> list[dict[str, Any]]:
        """Return the steps of a rank in an epoch."""
        return [step for step in self.records[rank]["steps"] if step["epoch"] == epoch]

    def samples(self, epoch: int, rank: int | None = None) -> list[tuple[int, int]]:
        """Return number and label of the samples, in order: of a rank, or of all."""
        ranks = range(len(self.records)) if rank is None else [rank]
        steps = [step for each in ranks for step in self.steps(each, epoch)]
        return [pair for step in steps for pair in zip(step["numbers"], step["labels"], strict=True)]

    def numbers(self, epoch: int, rank: int | None = None) -> list[int]:
        """Return the numbers of the samples, in order."""
        return [number for number, _ in self.samples(epoch, rank)]

    def step_counts(self, epoch: int) -> list[int]:
        """Return the number of steps of each rank."""
        return [len(self.steps(rank, epoch)) for rank in range(len(self.records))]

    def boxes(self) -> list[Box]:
        """Return what was cut out of the pictures of the training."""
        steps = [step for record in self.records for step in record["steps"]]
        return [Box.seen(box) for step in steps for box in step["boxes"]]

    def shapes(self) -> set[tuple[tuple[int, ...], str]]:
        """Return shape and dtype of the images, apart from the size of the batch."""
        steps = [step for record in self.records for step in record["steps"]]
        return {(tuple(step["shape"][1:]), step["dtype"]) for step in steps}

    def evaluated(self, rank: int = 0) -> tuple[list[int], list[Box]]:
        """Return the samples of the last validation, and what was cut out of each."""
        steps = [step for step in self.records[rank]["evaluated"] if step["epoch"] == EPOCHS - 1]
        numbers = [number for step in steps for number in step["numbers"]]
        return numbers, [Box.seen(box) for step in steps for box in step["boxes"]]


@dataclass(frozen=True)
class Box:
    """A part of a picture, in shares of its width and height.

    Attributes:
        left, top, right, bottom: edges; left is right of right where the picture was flipped.
    """

    left: float
    top: float
    right: float
    bottom: float

    @staticmethod
    def seen(edges: list[float]) -> Box:
        """Return the box that colours at the edges tell."""
        return Box(*(edge / 255 for edge in edges))

    @property
    def flipped(self) -> bool:
        """Whether left and right are exchanged."""
        return self.left > self.right

    @property
    def area(self) -> float:
        """Share of the picture; edges are centres of pixels, and half a pixel lies beyond each."""
        width = abs(self.right - self.left) * (WIDTH - 1) / WIDTH + 1 / WIDTH
        height = abs(self.bottom - self.top) * (HEIGHT - 1) / HEIGHT + 1 / HEIGHT
        return width * height

    @property
    def centre(self) -> tuple[float, float]:
        """Where its middle lies."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


def peer_environment(home: Path) -> dict[str, str]:
    """Return variables for a process of the peers, which writes its files below ``home``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_DATASETS_OFFLINE": "1",
        "LITDATA_DISABLE_VERSION_CHECK": "1",
        "TMPDIR": str(home / "tmp"),
    }


def write(name: str, folder: Path, count: int) -> None:
    """Have the peer write the data of a guide."""
    folder.mkdir()
    (folder.parent / "tmp").mkdir()
    command = [str(_PEER_PYTHON), "-m", "tests.docs.write_peer", name, str(folder), str(count)]
    done = subprocess.run(
        command, env=peer_environment(folder.parent), capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _launch(python: str, job: Job, ranks: int, environment: Mapping[str, str]) -> Trained:
    """Run a script as so many ranks of one launch, and wait for all of them."""
    home = Path(job.folder)
    port = str(free_port())
    programs = []
    for rank in range(ranks):
        own = home / f"rank{rank}"
        own.mkdir(parents=True)
        mine = Job(**{**vars(job), "folder": str(own), "record": str(own / "record.json")})
        (own / "job.json").write_text(mine.text())
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "SM_MODEL_DIR": str(own),
            "OMP_NUM_THREADS": "1",
        }
        with (own / "log.txt").open("w") as log:
            command = [python, "-m", "tests.docs.execute", str(own / "job.json")]
            programs.append(subprocess.Popen(command, env={**environment, **place}, cwd=ROOT, stdout=log, stderr=log))
    try:
        for program in programs:
            program.wait(_LIMIT_S)
    finally:
        for program in programs:
            program.kill()
            program.wait()
    records = []
    for rank in range(ranks):
        own = home / f"rank{rank}"
        log_text = (own / "log.txt").read_text()[-3000:]
        assert (own / "record.json").exists(), log_text
        records.append(json.loads((own / "record.json").read_text()))
        assert not records[-1]["error"], records[-1]["error"] + log_text
    return Trained(records)


def run_before(name: str, how: Guide, data: Path, home: Path, ranks: int) -> Trained:
    """Run the script before, in the peers' environment, over what the peer wrote."""
    known = {"FOLDER": str(data), "LOCAL": str(home / "local")}

    def placed(text: str) -> str:
        for word, place in known.items():
            text = text.replace(word, place)
        return text

    replace = {old: placed(new) for old, new in how.before.items()}
    job = Job(guide(name, "before"), "", str(home), replace, "import torch\ntorch.manual_seed(1)\n", how.tail)
    environment = peer_environment(home) | {key: placed(value) for key, value in how.environment.items()}
    (home / "tmp").mkdir(parents=True)
    return _launch(str(_PEER_PYTHON), job, ranks, environment)


def run_after(name: str, how: Guide, world: World, home: Path, ranks: int = 1) -> Trained:
    """Run the script after, over the same data in S3."""
    job = Job(guide(name, "after"), "", str(home), how.after, "", how.tail, {}, list(how.arguments))
    own = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client")))}
    found = _launch(sys.executable, job, ranks, os.environ | world.environment | own)
    world.server.hang_up()
    return found
