"""The pictures of the bench of objects: one object each, of some 100 KB, in folders, with a table of labels.

Made once, beside the other benches' data; see ``dataset``. At quality 97 the pictures are as large as photographs of
that size off a camera, where the other benches' are as large as those of a web page.
"""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.bench.dataset import BUCKET, data_folder
from tests.bench.pictures import jpeg

if TYPE_CHECKING:
    from pathlib import Path

LABELS: Final = "labels.csv"
_VERSION: Final = 1  # changes whenever pictures or layout do
_QUALITY: Final = 97
_FOLDERS: Final = 8
_FOLDER: Final = "objects"


@dataclass(frozen=True, slots=True)
class ObjectsData:
    """The objects on disk.

    Attributes:
        root: folder to serve; ``root/bench/objects/`` holds them and the table.
        folder: where they lie in the bucket.
        count: how many.
        mean_bytes: of one.
        quality: of the JPEGs.
    """

    root: Path
    folder: str
    count: int
    mean_bytes: float
    quality: int


def prepare(*, quick: bool) -> ObjectsData:
    """Return the objects, making them where they are missing; 9,216 take some 20 s of one core."""
    each = 256 if quick else 1152
    root = data_folder() / f"objects-{_VERSION}-{_QUALITY}-{_FOLDERS * each}"
    target = root / BUCKET / _FOLDER
    if not target.exists():
        partial = root / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _make(partial, each)
        target.parent.mkdir(exist_ok=True)
        partial.rename(target)  # only a whole one ever has its final name
    sizes = [path.stat().st_size for path in target.glob("*/*.jpg")]
    return ObjectsData(root, _FOLDER, len(sizes), sum(sizes) / len(sizes), _QUALITY)


def _make(target: Path, each: int) -> None:
    # spawned: the parent may run threads; two, since that is what the smallest machine has
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_write_folder, target, number, each) for number in range(_FOLDERS)]
        rows = [row for job in jobs for row in job.result()]
    (target / LABELS).write_text("\n".join(["path,label", *rows]))


def _write_folder(target: Path, number: int, each: int) -> list[str]:
    """Write one folder's pictures; return their rows of the table."""
    folder = target / f"class-{number:03d}"
    folder.mkdir()
    rows = []
    for index in range(number * each, (number + 1) * each):
        (folder / f"{index:08d}.jpg").write_bytes(jpeg(0, index, _QUALITY))
        rows.append(f"{folder.name}/{index:08d}.jpg,{index}")
    return rows
