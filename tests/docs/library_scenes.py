"""Scenes of the pages about the device feed and about other libraries: stand-ins for what needs a GPU, or is large."""

from __future__ import annotations

from typing import Final

from tests.docs.scene import Scene

_STAND_IN: Final = """
import torch
from types import SimpleNamespace
from tests.fakes import other_libraries as fakes

def install(name, **members):
    place = fakes.installed(name, **members)
    place.__enter__()
    places.append(place)

places = []
steps = []

def train_step(*arguments):
    *_, images, labels = arguments
    assert len(images) == len(labels)
    steps.append(len(labels))
"""
_MODEL: Final = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 10)

    def forward(self, images):
        return self.head(images.float().mean((2, 3)))

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_IMAGES: Final = "assert tuple(batch['jpg'].shape)[1:] == (224, 224, 3)\n"

LIBRARY_SCENES: Final = {
    "device transforms": Scene(
        after="""
batch = next(iter(loader))
assert batch["jpg"].shape == (16, 3, 224, 224)
assert batch["jpg"].is_contiguous(memory_format=torch.channels_last)
assert batch["jpg"].dtype == torch.bfloat16
assert batch["cls"].shape == (16, 1000)
assert torch.allclose(batch["cls"].sum(1), torch.ones(16))
""",
    ),
    "torchcodec": Scene(
        before=_STAND_IN
        + """
import simplejpeg

def decode_jpeg(files, *, mode, device):
    return [torch.from_numpy(simplejpeg.decode_jpeg(file.numpy())).movedim(-1, 0) for file in files]

install("torchcodec.decoders", decode_jpeg=decode_jpeg, decode_image=None)
""",
        after="assert next(iter(loader))['jpg'].shape == (16, 3, 224, 224)\n",
    ),
    "own decoder": Scene(
        before="""
import torch

def decode_on_gpu(files, device):
    assert all(file[:2].tolist() == [0xFF, 0xD8] for file in files)
    return torch.zeros(len(files), device=device)
""",
        after="assert next(iter(loader))['jpg'].shape == (16,)\n",
    ),
    "CUDA graph": Scene(
        before=_STAND_IN
        + """
import contextlib

addresses = set()

def train_step(images, labels):
    addresses.add((images.data_ptr(), labels.data_ptr()))
    steps.append(len(labels))

torch.cuda.CUDAGraph = lambda: SimpleNamespace(replay=lambda: steps.append("replay"))
torch.cuda.graph = contextlib.nullcontext
""",
        replace={"batch_size=256": "batch_size=4", 'uneven="drop"': 'uneven="drop", steps=6'},
        after="assert steps == [4, 4, 4, 4, 'replay', 'replay']\nassert len(addresses) == 1\n",
    ),
    "compile": Scene(
        before=_STAND_IN + _MODEL,
        replace={"torch.compile(model)": 'torch.compile(model, backend="eager")'},
        after="assert loss.isfinite()\nassert batch['jpg'].dtype == torch.bfloat16\n",
    ),
    "numpy": Scene(after=_IMAGES),
    "jax": Scene(
        before=_STAND_IN + "state = None\ninstall('jax', local_devices=lambda: ['a', 'b'], **fakes.jax())\n",
        replace={'uneven="drop",': ""},
        after="assert steps == [16, 8]\n",
    ),
    "cupy": Scene(
        before=_STAND_IN
        + """
import contextlib

current = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=1))
install("cupy", from_dlpack=lambda tensor: tensor.float(), cuda=current)
torch.cuda.ExternalStream = torch.cuda.stream = contextlib.nullcontext
""",
        after=_IMAGES,
    ),
    "dlpack": Scene(after=_IMAGES),
    "tensorflow": Scene(before=_STAND_IN + "install('tensorflow', **fakes.tensorflow())\n", after=_IMAGES),
    "dali": Scene(
        before=_STAND_IN
        + """
import functools

def external_source(source, *, num_outputs, batch, cycle, dtype):
    assert (batch, cycle, dtype) == (True, "raise", ["UINT8", "INT64"])
    return source, num_outputs

def image_random_crop(files, *, device, output_type):
    return files

def pipeline_def(**options):
    return lambda make: make

class Iterator:
    def __init__(self, outputs, names, auto_reset):
        self.source, self.names = outputs[0], names

    def __iter__(self):
        for files, labels in fakes.DaliPipeline(self.source, 2, depth=3, no_copy=False):
            assert all(file[:2].tolist() == [0xFF, 0xD8] for file in files)
            yield [dict(zip(self.names, (torch.zeros(len(files)), labels)))]

fn = SimpleNamespace(
    external_source=lambda source, **options: (external_source(source, **options)[0], None),
    decoders=SimpleNamespace(image_random_crop=image_random_crop),
    resize=lambda images, size: images,
)
types = SimpleNamespace(UINT8="UINT8", INT64="INT64", RGB="RGB")
install("nvidia.dali.plugin.pytorch", DALIGenericIterator=Iterator)
import sys
vars(sys.modules["nvidia.dali"]).update(fn=fn, pipeline_def=pipeline_def, types=types)
""",
        after="""
assert dataset.state_dict()["epoch"] == 1
assert len(batch[0]["cls"]) == 8
""",
    ),
    "lightning": Scene(
        before="""
import warnings
import pytorch_lightning as pl
import torch

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 10)
        self.seen = []

    def training_step(self, batch, _):
        self.seen += batch["cls"].tolist()
        return torch.nn.functional.cross_entropy(self.head(batch["jpg"].float().mean((1, 2))), batch["cls"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

warnings.simplefilter("ignore")
model = Model()
""",
        replace={"max_epochs=2": "max_epochs=2, accelerator='cpu', logger=False, enable_checkpointing=False"},
        after="assert sorted(model.seen) == sorted(2 * [number % 10 for number in range(24)])\n",
    ),
    "ray": Scene(
        before=_STAND_IN
        + """
class Trainer:
    def __init__(self, train, scaling_config):
        assert scaling_config.use_gpu
        self.fit = train

install("ray.train.torch", TorchTrainer=Trainer, get_device=lambda: torch.device("cpu"))
import sys
sys.modules["ray.train"].ScalingConfig = SimpleNamespace
""",
        after="assert steps == [16, 8]\n",
    ),
    "ray elastic": Scene(
        before=_STAND_IN
        + """
import os, pathlib, tempfile
import feedd.ray

settings, reports, saved = [], [], []
feedd.ray.start_daemons = settings.append
feedd.ray.daemon_address = lambda: os.environ["FEEDD_ADDRESS"]

class Checkpoint:
    def __init__(self, folder):
        self.state = (pathlib.Path(folder) / "data.pt").read_bytes()

    @classmethod
    def from_directory(cls, folder):
        return cls(folder)

    def as_directory(self):
        folder = tempfile.TemporaryDirectory()
        (pathlib.Path(folder.name) / "data.pt").write_bytes(self.state)
        return folder

class Trainer:
    def __init__(self, train, scaling_config, run_config):
        assert scaling_config.num_workers == (4, 8)
        assert run_config.failure_config.max_failures == 3
        self.fit = train

def report(metrics, checkpoint):
    saved.append(checkpoint)

context = SimpleNamespace(get_world_size=lambda: 1, get_world_rank=lambda: 0)
install("ray", init=lambda: None)
install("ray.train.torch", TorchTrainer=Trainer)
import sys
sys.modules["ray"].init = lambda: None
for name, member in {
    "Checkpoint": Checkpoint, "FailureConfig": SimpleNamespace, "RunConfig": SimpleNamespace,
    "ScalingConfig": SimpleNamespace, "get_context": lambda: context, "report": report,
    "get_checkpoint": lambda: saved[-1] if saved else None,
}.items():
    setattr(sys.modules["ray.train"], name, member)
""",
        replace={"1024": "8", "1000 == 999": "2 == 1"},
        after="""
assert settings[0]["cache.size"] == "800GiB"
assert steps == [8, 8, 8]
train()  # from the checkpoint of two steps
assert steps == [8, 8, 8, 8]
""",
    ),
    "composer": Scene(
        before=_STAND_IN
        + _MODEL
        + """
class Trainer:
    def __init__(self, model, train_dataloader, max_duration):
        assert max_duration == "2ep"
        self.data = train_dataloader

    def fit(self):
        for _ in range(2):
            steps.extend(self.data.get_num_samples_in_batch(batch) for batch in self.data.loader)

install("composer.core", DataSpec=lambda loader, **options: SimpleNamespace(loader=loader, **options))
import sys
sys.modules["composer"].Trainer = Trainer
""",
        after="assert steps == [16, 8, 16, 8]\n",
    ),
}
