"""The scripts of the migration guides, over data that the other library wrote."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from feedd_client import FeedDataset
from tests.bench.peers import HOW_TO_INSTALL, PEER_VENV
from tests.docs.blocks import guide
from tests.docs.data import SAMPLES
from tests.docs.execute import EPOCHS, Job
from tests.docs.guides import BATCH_SIZE, Trained, guides, run_after, run_before, write
from tests.docs.world import World, new_world
from tests.docs.write_peer import LABELS
from tests.fakes.forks import run
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Test = TypeVar("_Test", bound="Callable[..., None]")
NAMES = sorted(guides(SAMPLES))
SOFT = {"torchvision-transforms"}
"""Guides whose labels are rows of probabilities, and whose pictures are mixed."""
COUNT = 47
"""Samples that the peers write: no multiple of batches, ranks or partitions."""
IMAGES = {((3, 224, 224), "torch.float32")}


def test_every_guide_is_run() -> None:
    """Each migration guide has its entry."""
    assert {page.stem for page in (ROOT / "docs" / "migrate").glob("*.md")} == set(NAMES)


def check_samples(trained: Trained, count: int) -> None:
    """Make sure that each sample came once in each epoch, with its label, in another order."""
    for epoch in range(EPOCHS):
        assert sorted(trained.samples(epoch)) == [(number, number % LABELS) for number in range(count)]
    assert trained.numbers(0) != trained.numbers(1)
    assert trained.numbers(0) != sorted(trained.numbers(0))


def check_crops(trained: Trained) -> None:
    """Make sure that crops have the sizes of ``RandomResizedCrop``, and half of them are flipped."""
    boxes = trained.boxes()
    assert min(box.area for box in boxes) > 0.06  # 0.08, less what a pixel of the smallest crop is
    assert max(box.area for box in boxes) < 1.02
    assert 0.3 < statistics.fmean(box.area for box in boxes) < 0.6
    assert 0.25 < statistics.fmean(box.flipped for box in boxes) < 0.75


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # SageMaker's script reads as that of ImageFolder does
    [pytest.param(name, marks=[pytest.mark.nightly] if name == "sagemaker" else []) for name in NAMES],
)
def test_after(name: str, world: World, tmp_path: Path) -> None:
    """The script after trains on each sample of the peer's data once an epoch, in orders that differ."""
    how = guides(SAMPLES)[name]
    environment = world.environment | {"SM_MODEL_DIR": str(tmp_path)}
    job = Job(guide(name, "after"), str(tmp_path / "record.json"), str(tmp_path), how.after, "", how.tail, environment)
    job.arguments = [*how.arguments]
    trained = Trained([world.run(job, name)])
    assert trained.shapes() == IMAGES
    if name in SOFT:
        return
    kept = SAMPLES // BATCH_SIZE * BATCH_SIZE if 'uneven="drop"' in job.code else SAMPLES
    if kept == SAMPLES:
        check_samples(trained, SAMPLES)
    assert [len(set(trained.numbers(epoch))) for epoch in range(EPOCHS)] == [kept] * EPOCHS
    check_crops(trained)


# ---------------------------------------------------------------- both, over what the peer wrote just now

peers = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not [*PEER_VENV.glob("lib/python*/site-packages/torchvision")],
        reason=f"needs the peers' libraries: {HOW_TO_INSTALL}",
    ),
]


@dataclass(frozen=True)
class Both:
    """A guide's two scripts over the same data.

    Attributes:
        before, after: what each trained on, by the number of ranks.
        world: the data, and a daemon over it.
    """

    before: dict[int, Trained]
    after: dict[int, Trained]
    world: World


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, forks: None) -> Iterator[Both]:
    """Run a guide's scripts, with one rank and with two."""
    name: str = request.param
    how = guides(COUNT)[name]
    with TemporaryDirectory(prefix="fd-", dir="/tmp") as made:
        home = Path(made)
        write(name, home / "data", COUNT)
        files = sorted(file for file in (home / "data").rglob("*") if file.is_file())
        content = [(str(file.relative_to(home / "data")), file.read_bytes()) for file in files]
        with new_world(content) as world:
            launches = (1,) if name in SOFT else (1, 2)  # that guide's scripts are for one GPU
            before = {ranks: run_before(name, how, home / "data", home / f"b{ranks}", ranks) for ranks in launches}
            after = {ranks: run_after(name, how, world, home / f"a{ranks}", ranks) for ranks in launches}
            yield Both(before, after, world)


def compared(*names: str) -> Callable[[_Test], _Test]:
    """Return a decorator: a test over both scripts of these guides."""
    mark = pytest.mark.parametrize("both", names, indirect=True, scope="module")

    def marked(test: _Test) -> _Test:
        for each in (*peers, mark):
            test = each(test)
        return test

    return marked


def full(count: int = COUNT, ranks: int = 1) -> int:
    """Return the samples of the steps that are full on all ranks."""
    step = BATCH_SIZE * ranks
    return count // step * step


def repeats(trained: Trained, epoch: int = 0) -> int:
    """Return how many samples came more than once."""
    return sum(times > 1 for times in Counter(trained.numbers(epoch)).values())


@compared(*(name for name in NAMES if name not in SOFT))
def test_same_samples_and_crops(both: Both) -> None:
    """Both see pictures of one shape, with the peer's labels, cut by one distribution, in orders of their own."""
    before, after = both.before[1], both.after[1]
    for trained in (before, after):
        assert trained.shapes() == IMAGES
        assert all(label == number % LABELS for epoch in range(EPOCHS) for number, label in trained.samples(epoch))
        assert trained.numbers(0) != trained.numbers(1)
        check_crops(trained)
    areas = [statistics.fmean(box.area for box in trained.boxes()) for trained in (before, after)]
    assert abs(areas[0] - areas[1]) < 0.12
    assert before.numbers(0) != after.numbers(0)
    assert set(before.numbers(0)) <= set(range(COUNT))


@compared("imagefolder", "sagemaker")
def test_folders(both: Both) -> None:
    """One rank: all, with a short last batch. Two: DistributedSampler repeats samples, and feedd leaves some out."""
    for trained in (both.before[1], both.after[1]):
        check_samples(trained, COUNT)
        assert [len(step["numbers"]) for step in trained.steps(0, 0)][-1] == COUNT % BATCH_SIZE
    assert both.before[2].step_counts(0) == [3, 3]
    assert (len(both.before[2].numbers(0)), repeats(both.before[2])) == (COUNT + 1, 1)
    assert both.after[2].step_counts(0) == [2, 2]
    assert (len(both.after[2].numbers(0)), repeats(both.after[2])) == (full(ranks=2), 0)


@compared("imagefolder")
def test_validation(both: Both) -> None:
    """The validation crop is the same region, and on two ranks feedd counts each sample once."""
    wanted, found = (dict(zip(*trained.evaluated(), strict=True)) for trained in (both.before[1], both.after[1]))
    assert set(wanted) == set(found) == set(range(COUNT))
    for number, box in wanted.items():
        other = found[number]
        for one, two in zip(vars_of(box), vars_of(other), strict=True):
            assert abs(one - two) < 0.004, (box, other)  # a pixel of 300
    counted = {ranks: both.before[ranks].records[0]["printed"].splitlines()[-1] for ranks in (1, 2)}
    assert counted == {1: f"counted {COUNT}", 2: f"counted {COUNT + 1}"}
    counted = {ranks: both.after[ranks].records[0]["printed"].splitlines()[-1] for ranks in (1, 2)}
    assert counted == {1: f"counted {COUNT}", 2: f"counted {COUNT}"}


def vars_of(box: Any) -> list[float]:
    """Return the edges of a box."""
    return [box.left, box.top, box.right, box.bottom]


@compared("webdataset")
def test_webdataset(both: Both) -> None:
    """Resampled shards repeat some samples and leave others out; feedd gives each once, and steps are equal."""
    for ranks in (1, 2):
        before = both.before[ranks]
        assert before.step_counts(0) == [COUNT // (BATCH_SIZE * ranks)] * ranks
        assert repeats(before) > 0
        assert len(set(before.numbers(0))) < len(before.numbers(0))
    check_samples(both.after[1], COUNT)
    steps = both.after[2].step_counts(0)  # no counts: all ranks stop where the first one ends
    assert steps[0] == steps[1]
    assert repeats(both.after[2]) == 0
    count_samples(both, "s3://my-bucket/imagenet-wds/", {"jpg;png": "image:8x8", "cls": "int"})


@compared("litdata")
def test_litdata(both: Both) -> None:
    """Both leave out the last batch that is not full, and steps are equal."""
    for ranks in (1, 2):
        for trained in (both.before[ranks], both.after[ranks]):
            assert trained.step_counts(0) == [full(ranks=ranks) // (BATCH_SIZE * ranks)] * ranks
            assert repeats(trained) == 0
    url = "s3://my-bucket/imagenet-litdata/train/"
    assert lengths(both, url, {"image": "image:8x8", "label": "int"}) == -(-COUNT // BATCH_SIZE)  # index.json tells


@compared("mosaicml")
def test_mosaicml(both: Both) -> None:
    """Streaming repeats samples until all canonical nodes have as many; feedd gives each once, or leaves some out."""
    for ranks in (1, 2):
        before = both.before[ranks]
        assert len(before.numbers(0)) == 48  # a multiple of 8 canonical nodes
        assert set(before.numbers(0)) == set(range(COUNT))
        assert len(set(before.step_counts(0))) == len(set(both.after[ranks].step_counts(0))) == 1
        assert repeats(both.after[ranks]) == 0
    check_samples(both.after[1], COUNT)
    assert len(both.after[2].numbers(0)) < COUNT
    url = "s3://my-bucket/imagenet-mds/train/"
    assert lengths(both, url, {"image": "image:8x8", "class": "int"}) == -(-COUNT // BATCH_SIZE)  # index.json tells


@compared("hf-datasets")
def test_hf_datasets(both: Both) -> None:
    """The script before drops the last batch; feedd knows counts after feedd index, and reads save_to_disk, too."""
    assert len(both.before[1].numbers(0)) == full()
    check_samples(both.after[1], COUNT)
    assert repeats(both.before[2]) == repeats(both.after[2]) == 0
    fields = {"image": "image:8x8", "label": "int"}
    saved = FeedDataset("s3://my-bucket/saved/", batch_size=8, fields=fields, address=both.world.daemon.address)
    assert sum(len(batch["label"]) for batch in saved) == COUNT
    del saved
    count_samples(both, "s3://my-bucket/food101/data/", fields)


@compared("sagemaker")
def test_recordio_of_the_sdk(both: Both) -> None:
    """Features and labels are those that the SDK's writer was given."""
    fields = {"values": "tensor:float32:784", "label_values": "float"}
    url = "recordio-protobuf+s3://my-bucket/mnist/train/"
    found: dict[float, list[float]] = {}
    for batch in FeedDataset(url, batch_size=8, fields=fields, address=both.world.daemon.address):
        found |= dict(zip(batch["label_values"].tolist(), batch["values"].tolist(), strict=True))
    both.world.server.hang_up()
    assert found == {float(number): [float(number)] * 784 for number in range(COUNT)}


@compared("torchvision-transforms")
def test_mixup(both: Both) -> None:
    """Both make float images, and labels that are rows of probabilities."""
    for trained in (both.before[1], both.after[1]):
        assert trained.shapes() == IMAGES
        assert sum(len(step["labels"]) for step in trained.steps(0, 0)) == COUNT
        for row in (row for step in trained.steps(0, 0) for row in step["labels"]):
            assert len(row) == 1000
            assert abs(sum(row) - 1) < 1e-5


def lengths(both: Both, url: str, fields: dict[str, str]) -> int:
    """Return the steps that one rank knows in advance."""
    length = len(FeedDataset(url, batch_size=BATCH_SIZE, fields=fields, address=both.world.daemon.address))
    both.world.server.hang_up()
    return length


def count_samples(both: Both, url: str, fields: dict[str, str]) -> None:
    """Make sure that the number of steps is known once ``feedd index`` has run."""
    done = run(["index", url], os.environ | both.world.environment)
    assert done.returncode == 0, done.stderr
    assert lengths(both, url, fields) == -(-COUNT // BATCH_SIZE)
