"""Runs one Python block as a program of its own, and writes down what it trained on.

The same file serves two environments: the project's own, and that of the peers, which has no feedd. Everything that is
changed in a block before it runs is in ``ADAPTED`` and in ``Job.replace``.
"""

# ruff: noqa: PLC0415 - only the standard library is there in every environment

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import re
import sys
import traceback
import types
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.docs.pictures import STEP
from tests.docs.torchvision_ops import load_torchvision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ADAPTED: Final = (
    (r'"cuda"', '"cpu"'),
    (r'"nccl"', '"gloo"'),
    (r"device_ids=\[local_rank\]", "device_ids=None"),
    (r"num_workers=\d+", "num_workers=1"),
    (r"batch_size=(256|512|4096)", "batch_size=16"),
    (r"^for (\w+) in range\(\d+\):$", r"for \1 in _epochs():"),
)
"""There is no GPU, and two epochs show what ninety do."""
_NEEDED: Final = ("feedd_client", "torch._dynamo", "torch.distributed.tensor")
"""What scripts import themselves, and what optimizers and DistributedDataParallel do."""
EPOCHS: Final = 2
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class Job:
    """What to run.

    Attributes:
        code: of the block.
        record: file for what it did, as JSON.
        replace: texts of the block and what stands there instead: paths, and sizes that fit small data.
        before: code that runs first, in the same namespace.
        after: code that runs then.
        environment: of the process, on top of its own.
        arguments: of the command line.
        folder: to run in; empty: where the process is.
    """

    code: str
    record: str
    folder: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


class Recorder:
    """What a script trained on, step by step.

    Attributes:
        steps: of the training, each with ``epoch``, ``shape``, ``dtype``, ``labels``, ``numbers`` and ``boxes``.
        evaluated: the same of what a model in its evaluation mode saw.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.evaluated: list[dict[str, Any]] = []
        self._epoch = -1

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs."""
        for self._epoch in range(EPOCHS):
            yield self._epoch

    def see(self, images: Any, *, training: bool) -> None:
        """Note the images that a model got: float, normalised, ``[batch, channel, height, width]``."""
        import torch

        pixels = images.detach().float()

        def colour(channel: int, some: Any) -> Any:
            return (some.flatten(1).mean(1) * _STD[channel] + _MEAN[channel]) * 255

        red, green = pixels[:, 0], pixels[:, 1]
        columns = [colour(0, red[:, :, edge]) for edge in (0, -1)]
        rows = [colour(1, green[:, edge]) for edge in (0, -1)]
        edges = (columns[0], rows[0], columns[1], rows[1])
        blue = colour(2, pixels[:, 2])
        step = {
            "epoch": self._epoch,
            "shape": list(images.shape),
            "dtype": str(images.dtype),
            "numbers": (blue / STEP).round().int().tolist(),
            "boxes": torch.stack(edges, 1).tolist(),
            "labels": [],
        }
        (self.steps if training else self.evaluated).append(step)

    def label(self, labels: Any) -> None:
        """Note the labels of the step."""
        if self.steps:
            self.steps[-1]["labels"] = labels.tolist()


def _stand_in_models(recorder: Recorder) -> None:
    """Put a model of two numbers per class in the place of torchvision's."""
    import torch

    class _Model(torch.nn.Module):
        def __init__(self, num_classes: int) -> None:
            super().__init__()
            self.head = torch.nn.Linear(3, num_classes)

        def forward(self, images: Any) -> Any:
            recorder.see(images, training=self.training)
            return self.head(images.mean((2, 3)))

    if not load_torchvision():
        sys.modules["torchvision"] = types.ModuleType("torchvision")
    models: Any = types.ModuleType("torchvision.models")
    models.resnet50 = _Model
    sys.modules["torchvision.models"] = models


def _without_a_gpu(recorder: Recorder) -> None:
    import torch
    from torch.nn import functional

    torch.nn.Module.cuda = lambda self, *_: self  # type: ignore[method-assign]  # stays where it is
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]  # see above
    torch.cuda.set_device = lambda *_: None
    real = functional.cross_entropy

    def recorded(input: Any, target: Any, *arguments: Any, **options: Any) -> Any:
        recorder.label(target)
        return real(input, target, *arguments, **options)

    functional.cross_entropy = recorded


class _Loaders:
    """Loaders and datasets of a block, and which of them it has read."""

    def __init__(self) -> None:
        from torch.utils.data import DataLoader

        from feedd_client import DeviceLoader, FeedDataset

        self._made: list[Any] = []
        self._read: set[int] = set()
        self._kinds: tuple[Any, ...] = (DeviceLoader, DataLoader, FeedDataset)
        for kind in self._kinds:
            self._watch(kind)

    def _watch(self, kind: Any) -> None:
        make, read = kind.__init__, kind.__iter__

        def made(loader: Any, *arguments: Any, **options: Any) -> None:
            self._made.append(loader)
            make(loader, *arguments, **options)

        def iterated(loader: Any) -> Any:
            self._read.add(id(loader))
            return read(loader)

        kind.__init__, kind.__iter__ = made, iterated

    def read_the_others(self) -> list[str]:
        """Take a batch of each that the block only makes; return what they are."""
        said = []
        for loader in sorted(self._made, key=lambda one: [isinstance(one, kind) for kind in self._kinds].index(True)):
            if id(loader) not in self._read:
                self._read.add(id(loader))
                said.append(repr(next(iter(loader))))
            inner = getattr(loader, "dataset", None)
            while inner is not None:
                self._read.add(id(inner))
                inner = getattr(inner, "dataset", None)
        return said


def _adapted(job: Job) -> str:
    code = job.code
    for old, new in job.replace.items():
        assert old in code, f"expected {old!r} in the block"
        code = code.replace(old, new)
    for pattern, new in ADAPTED:
        code = re.sub(pattern, new, code, flags=re.MULTILINE)
    return code


def _run(job: Job, recorder: Recorder) -> list[str]:
    os.environ.update(job.environment)
    os.chdir(job.folder or ".")
    sys.argv = ["train.py", *job.arguments]
    loaders = None
    with contextlib.suppress(ModuleNotFoundError):
        loaders = _Loaders()
    _without_a_gpu(recorder)
    if "torchvision" in job.code:
        _stand_in_models(recorder)
    namespace: dict[str, Any] = {"__name__": "__main__", "_epochs": recorder.epochs}
    module = types.ModuleType("__main__")
    module.__dict__.update(namespace)
    sys.modules["__main__"] = module  # classes of the block are pickled for workers by this name
    parts: Iterable[tuple[str, str]] = (("before", job.before), ("block", _adapted(job)), ("after", job.after))
    for name, code in parts:
        exec(compile(code, f"<{name}>", "exec"), module.__dict__)
    read = loaders.read_the_others() if loaders else []
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
    return read


def execute(job: Job) -> None:
    """Run it and write its record: ``error``, ``printed``, ``read``, ``steps`` and ``evaluated``."""
    recorder = Recorder()
    printed = Path(f"{job.record}.out")
    found: dict[str, Any] = {"error": "", "read": []}
    with printed.open("w") as out, contextlib.redirect_stdout(out):
        try:
            found["read"] = _run(job, recorder)
        except BaseException as error:  # noqa: BLE001 - whatever a block does ends its process, and is told
            found["error"] = "" if isinstance(error, SystemExit) and not error.code else traceback.format_exc()
    found |= {"printed": printed.read_text(), "steps": recorder.steps, "evaluated": recorder.evaluated}
    Path(job.record).write_text(json.dumps(found))


def _read(file: str) -> Job:
    return Job(**json.loads(Path(file).read_text()))


def serve() -> None:
    """Run the jobs whose files standard input names, one after another, each in a process forked from this one.

    Importing what optimizers need takes longer than most blocks: it is done once. A line answers each job.
    """
    for name in _NEEDED:
        importlib.import_module(name)
    for line in sys.stdin:
        file = line.strip()
        child = os.fork()
        if not child:
            with Path(file).with_name("log.txt").open("w") as log:
                os.dup2(log.fileno(), 1)  # children of the block write here, and not into the answers
                os.dup2(log.fileno(), 2)
            execute(_read(file))
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        print("done", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        execute(_read(sys.argv[1]))
    else:
        serve()
