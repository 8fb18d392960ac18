"""Writes a guide's data with the writer of the library that the guide is about.

In the peers' environment::

    python -m tests.docs.write_peer webdataset FOLDER COUNT

``FOLDER`` then holds what the guide's bucket ``my-bucket`` holds. Sample ``n`` is picture ``n``, and its label is
``n % 5``. There are eight shards.

``tests/fixtures/guides`` has what four of them wrote, for COUNT 24: ``make test`` reads that.
"""

# ruff: noqa: PLC0415 - each library is imported where it writes
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

from __future__ import annotations

import importlib.util
import io
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tests.docs.pictures import CLASSES, folder_files, picture

if TYPE_CHECKING:
    from collections.abc import Iterator

LABELS = len(CLASSES)
SHARDS = 8
_DOCUMENT_TOKENS = 700


def per_shard(count: int) -> int:
    """Return how many samples a shard takes, so that there are eight."""
    return -(-count // SHARDS)


def webdataset(folder: Path, count: int) -> None:
    """Write with ``ShardWriter``."""
    import webdataset as wds

    place = folder / "imagenet-wds"
    place.mkdir()
    with wds.ShardWriter(str(place / "train-%06d.tar"), maxcount=per_shard(count), verbose=0) as writer:
        for number in range(count):
            writer.write({"__key__": f"{number:05d}", "jpg": picture(number), "cls": number % LABELS})


def _opened(number: int) -> Image.Image:
    """Return a picture as PIL opens a file: writers then store the bytes of the file."""
    file = Path(tempfile.gettempdir()) / f"picture-{number}.jpg"
    file.write_bytes(picture(number))
    return Image.open(file)


def _litdata_image(number: int) -> dict[str, Any]:
    return {"image": _opened(number), "label": number % LABELS}


def _litdata_document(number: int) -> Iterator[Any]:
    import torch

    yield torch.arange(number, number + _DOCUMENT_TOKENS, dtype=torch.int32)


def litdata(folder: Path, count: int) -> None:
    """Write with ``optimize``: images, and documents for ``TokensLoader``."""
    import litdata as lit

    options = {"num_workers": 1, "verbose": False}
    place = folder / "imagenet-litdata" / "train"
    lit.optimize(_litdata_image, [*range(count)], output_dir=str(place), chunk_size=per_shard(count), **options)
    lit.optimize(
        _litdata_document,
        [*range(12)],
        output_dir=str(folder / "corpus-litdata" / "train"),
        chunk_size=6 * _DOCUMENT_TOKENS,
        item_loader=lit.TokensLoader(),
        **options,
    )


def mosaicml(folder: Path, count: int) -> None:
    """Write with ``MDSWriter``: images, and ids of tokens."""
    from streaming import MDSWriter

    images = str(folder / "imagenet-mds" / "train")
    limit = int((per_shard(count) + 0.5) * (len(picture(0)) + 50) + 500)  # bytes of so many samples, and of a head
    with MDSWriter(out=images, columns={"image": "jpeg", "class": "int"}, size_limit=limit) as writer:
        for number in range(count):
            writer.write({"image": _opened(number), "class": number % LABELS})
    with MDSWriter(out=str(folder / "c4-mds" / "train"), columns={"tokens": "bytes"}, size_limit=100_000) as writer:
        for number in range(6):
            writer.write({"tokens": np.arange(number, number + 2048, dtype=np.int64).tobytes()})


def hf_datasets(folder: Path, count: int) -> None:
    """Write with ``to_parquet``, and with ``save_to_disk``."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as Feature

    images = [{"bytes": picture(number), "path": None} for number in range(count)]
    labels = [number % LABELS for number in range(count)]
    features = Features({"image": Feature(), "label": ClassLabel(names=CLASSES)})
    whole = Dataset.from_dict({"image": images, "label": labels}, features=features)
    place = folder / "food101" / "data"
    place.mkdir(parents=True)
    for shard in range(SHARDS):
        part = whole.shard(num_shards=SHARDS, index=shard, contiguous=True)
        part.to_parquet(str(place / f"train-{shard:05d}-of-{SHARDS:05d}.parquet"))
    whole.save_to_disk(str(folder / "saved"), num_shards=SHARDS)


def imagefolder(folder: Path, count: int) -> None:
    """Write plain files."""
    for name, data in folder_files(count):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def sagemaker(folder: Path, count: int) -> None:
    """Write the files of a FastFile channel, and RecordIO with the SDK's own writer, as for Pipe mode."""
    imagefolder(folder, count)
    found = importlib.util.find_spec("sagemaker")
    assert found is not None
    assert found.submodule_search_locations is not None
    for name in ("sagemaker", "sagemaker.amazon"):  # without its __init__, which imports all that the SDK depends on
        package = types.ModuleType(name)
        package.__path__ = [str(Path(found.submodule_search_locations[0], *name.split(".")[1:]))]
        sys.modules[name] = package
    errors: Any = types.ModuleType("sagemaker.utils")
    errors.DeferredError = type("DeferredError", (), {"__init__": lambda self, error: None})
    sys.modules["sagemaker.utils"] = errors
    from sagemaker.serializer_utils import write_numpy_to_dense_tensor

    place = folder / "mnist" / "train"
    place.mkdir(parents=True)
    for shard in range(2):
        numbers = np.arange(shard, count, 2, dtype=np.float32)
        out = io.BytesIO()
        write_numpy_to_dense_tensor(out, np.repeat(numbers[:, None], 784, axis=1), numbers)
        (place / f"{shard}").write_bytes(out.getvalue())


WRITERS = {
    "webdataset": webdataset,
    "litdata": litdata,
    "mosaicml": mosaicml,
    "hf-datasets": hf_datasets,
    "imagefolder": imagefolder,
    "torchvision-transforms": imagefolder,
    "sagemaker": sagemaker,
}

if __name__ == "__main__":
    from tests.docs.torchvision_ops import load_torchvision

    load_torchvision()
    WRITERS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
