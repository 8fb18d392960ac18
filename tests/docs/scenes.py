"""What stands around a block that is a part of a program: the code before it, and the code that uses it."""

from __future__ import annotations

from typing import Final

from tests.docs.library_scenes import LIBRARY_SCENES
from tests.docs.scene import Scene

_ALL: Final = "assert sum(len(batch['cls']) for batch in dataset) == 24\n"
_RESUME: Final = """
batches = iter(dataset)
next(batches)
kept = dataset.state_dict()
"""
# The picture's red and green tell which part of it was cut out: of 72 x 96 pixels a centred square.
_CROP: Final = """
from feedd_client import FeedDataset

def edges(recipe):
    picture = next(iter(FeedDataset("s3://my-bucket/train/", batch_size=8, fields={"jpg": recipe})))["jpg"][0].float()
    red, green = picture[..., 0], picture[..., 1]
    return [round(float(edge)) for edge in (red[:, 0].mean(), red[:, -1].mean(), green[0].mean(), green[-1].mean())]

def near(found, side):
    wanted = [255 * at / 95 for at in (48 - side / 2, 47 + side / 2)]
    wanted += [255 * at / 71 for at in (36 - side / 2, 35 + side / 2)]
    assert all(abs(edge - at) < 4 for edge, at in zip(found, wanted)), (found, wanted)
"""

SCENES: Final = LIBRARY_SCENES | {
    "train step": Scene(
        before="""
def train_step(images, labels):
    assert images.shape == (len(labels), 3, 224, 224)
    assert images.dtype == torch.bfloat16
""",
    ),
    "checkpoint": Scene(
        replace={"batch_size=256": "batch_size=8", "% 1000 == 999": "% 2 == 1", ", 90)": ", 2)"},
        after="""
calls = []
class Model(torch.nn.Linear):
    def forward(self, images):
        calls.append(len(images))
        return super().forward(images.mean((2, 3)))

def run(**options):
    model = Model(3, 1)
    calls.clear()
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), "checkpoint.pt", **options)
    return len(calls)

assert run() == 6  # two epochs of three steps; the last checkpoint is that of step 2 of the second
assert run(resume=True) == 1
""",
    ),
    "stateful loader": Scene(
        replace={"batch_size=256": "batch_size=8"},
        after="""
batches = iter(loader)
next(batches)
state = loader.state_dict()
rest = [batch["cls"].tolist() for batch in batches]
loader.load_state_dict(state)
assert [batch["cls"].tolist() for batch in loader] == rest
assert len(rest) == 2
""",
        slow="starts DataLoader workers",
    ),
    "distributed checkpoint": Scene(
        replace={"batch_size=256": "batch_size=8"},
        after=f"""{_RESUME}
save_position("kept")
rest = [batch["cls"].tolist() for batch in batches]
load_position("kept")
assert dataset.state_dict() == kept
assert [batch["cls"].tolist() for batch in dataset] == rest
""",
    ),
    "partitions": Scene(replace={"1024": "16"}, after=_ALL),
    "replicas": Scene(
        environment={"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
        replace={"batch_size=32": "batch_size=8"},
        after="""
from feedd_client import Topology

def rows(rank):
    topology = Topology(world_size=4, rank=rank, local_world_size=4, local_rank=rank)
    same = FeedDataset(
        "s3://my-bucket/tokens/", batch_size=8, fields={"tokens": "tokens:uint16:2049"}, shuffle=True, replicas=4,
        share="my-run", topology=topology, copy=True,
    )
    return iter(same)

batches = [next(ranks) for ranks in [rows(rank) for rank in range(4)]]
assert all(torch.equal(batch["tokens"], batches[0]["tokens"]) for batch in batches)
""",
        before="import torch\n",
    ),
    "trainer": Scene(
        replace={"10_000": "2", "per_device_train_batch_size=32": "per_device_train_batch_size=4"},
        after="""
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 64)
        self.shapes = []

    def forward(self, pixels, labels):
        self.shapes.append(tuple(pixels.shape))
        return {"loss": torch.nn.functional.cross_entropy(self.head(pixels.mean((2, 3))), labels)}

model = Model()
train(model)
assert model.shapes == [(4, 3, 64, 64)] * 2, model.shapes
""",
        slow="imports transformers",
    ),
    "source": Scene(
        after="""
from feedd_client import FeedDataset

FeedDataset(
    [photos, Source("s3://my-bucket/web/", weight=0.7)], batch_size=8, fields={"jpg": "image:224x224", "cls": "int"}
)
""",
    ),
    "mixup": Scene(
        after="""
batch = next(iter(loader))
assert batch["jpg"].shape == (16, 3, 224, 224)
assert batch["cls_other"].shape == (16,)
assert 0 <= batch["share"] <= 1
""",
    ),
    "decode on a GPU": Scene(
        before="""
import torch

def decode_on_gpu(files):
    assert all(file[:2].tolist() == [0xFF, 0xD8] for file in files)
    return torch.zeros(len(files))
""",
        after="assert next(iter(loader))['jpg'].shape == (16,)\n",
    ),
    "map": Scene(after="assert batch['jpg'].shape[1:] == (3, 224, 224)\nassert batch['jpg'].max() <= 1\n"),
    "collate": Scene(
        after="assert next(iter(loader))['jpg'].shape == (16, 3, 224, 224)\n", slow="starts DataLoader workers"
    ),
    "plug-in": Scene(
        after="""
depths = np.empty((1, 3), np.float32)
data = HEADER.pack(1, 3) + np.arange(3, dtype="<u2").tobytes()
assert DepthMap().measure(data) == (1, 3)
DepthMap(scale=2).decode(data, depths, 0)
assert depths.tolist() == [[0, 2, 4]]
assert (RandomInvert(p=1)(np.zeros((2, 2, 3), np.uint8), 1) == 255).all()
""",
    ),
    "plug-in in use": Scene(
        after="""
batch = next(iter(dataset))
assert [tuple(map.shape) for map in batch["depth"]][:3] == [(2, 4), (4, 4), (3, 4)]  # rooms 0, 8 and 16
assert abs(float(batch["depth"][0][1, 3]) - 0.007) < 1e-6
assert batch["jpg"].shape[1:] == (224, 224, 3)
""",
    ),
    "fields": Scene(
        after="""
batch = next(iter(dataset))
assert list(batch) == ["picture", "cls", "wav"]
assert batch["picture"].shape == (16, 224, 224, 3)
assert batch["wav"].shape == (16, 64000)
""",
    ),
    "filter": Scene(after="assert sum(len(batch['jpg']) for batch in dataset) == 12  # scores from 0.5\n"),
    "classes": Scene(after="assert dataset.classes('label') == [f'n{number:08d}' for number in range(5)]\n"),
    "decoded cache": Scene(after=_ALL * 2),
    "windows": Scene(after="assert x.shape[1] == 2048\nassert (x[:, 1:] == y[:, :-1]).all()\n"),
    "tokenize": Scene(after="assert next(iter(dataset))['tokens'][0].tolist() == [1, 2, 3, 1, 4, 50256]\n"),
    "pack": Scene(after="assert tokens.shape == document.shape\nassert tokens.shape[1] == 2048\n"),
    "pad": Scene(
        after="""
for batch in dataset:
    assert batch["ids"].shape[1] in (128, 256, 512)
    assert batch["ids_mask"].shape == batch["ids"].shape
""",
    ),
    "crop": Scene(after=f"{_CROP}near(edges(fields['jpg']), 72 * 224 / 256)\nnear(edges('image:224x224'), 72)\n"),
    "crop alone": Scene(after=f"{_CROP}near(edges(validation), 72 * 224 / 256)\nnear(edges('image:224x224'), 72)\n"),
    "protobuf": Scene(
        after="assert batch['values'].shape[1] == 784\nassert batch['label_values'].dtype.is_floating_point\n"
    ),
    "litdata tokens": Scene(after="assert tokens.shape[1] == 2048\n"),
    "mosaicml tokens": Scene(after="assert inputs.shape[1] == targets.shape[1] == 2047\n"),
    "file system": Scene(
        before="""
import fsspec
from feedd_client.filesystem import FeedFileSystem

fsspec.register_implementation("feedd", FeedFileSystem)  # as the installed package does
""",
        after="""
assert files.ls("my-bucket/models", detail=False) == ["my-bucket/models/model.pt"]
assert torch.equal(state["weight"], torch.ones(3))
assert len(header) == 100
files.close()
""",
    ),
    "pipe entry": Scene(
        before="""
import json
import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
os.environ["FEEDD_CHANNELS"] = json.dumps({"train": "s3://my-bucket/lines/"})
Path("train.py").write_text('''
found = [open(f"ml/input/data/train_{epoch}", "rb").read() for epoch in range(2)]
assert found[0] == found[1]
open("read", "wb").write(found[0])
''')
ended = []
sys.exit = ended.append
""",
        replace={'"/opt/ml': '"ml'},
        after="assert ended == [0]\nassert Path('read').stat().st_size > 100\n",
        slow="starts feedd pipe and a program",
    ),
    "launcher": Scene(
        before="""
import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
Path("train.py").write_text('''
from feedd_client import FeedDataset
dataset = FeedDataset("s3://my-bucket/train/", batch_size=8, fields={"cls": "int"}, uneven="allow")
assert sum(len(batch["cls"]) for batch in dataset) == 24
''')
os.environ.update(SM_HOSTS='["localhost"]', SM_CURRENT_HOST="localhost", SM_NUM_GPUS="1")
""",
        replace={
            '"unix:///tmp/feedd.sock"': 'f"unix://{os.getcwd()}/f.sock"',
            '"127.0.0.1:7071"': 'os.environ["FREE_STATUS"]',
            "29500": "29577",
        },
        slow="starts torchrun and a daemon",
    ),
}
