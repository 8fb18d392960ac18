"""What tells one build of the decoding code from another."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from feedd.workers.build import _files, _versions, build_digest

if TYPE_CHECKING:
    from pathlib import Path


def test_every_changed_file_is_another_build(tmp_path: Path) -> None:
    """A file that was replaced, removed or added changes what is digested; one that was only read does not."""
    (tmp_path / "codecs").mkdir()
    file = tmp_path / "codecs" / "image.py"
    file.write_text("a = 1")
    before = _files(tmp_path)
    assert _files(tmp_path) == before
    file.write_text("a = 11")
    longer = _files(tmp_path)
    os.utime(file, (1, 1))
    older = _files(tmp_path)
    (tmp_path / "more.py").touch()
    more = _files(tmp_path)
    assert len({tuple(facts) for facts in (before, longer, older, more)}) == 4


def test_only_libraries_that_decode_count(tmp_path: Path) -> None:
    """Another OpenCV is another build; another package of the training environment is none."""
    for name in ("opencv_python_headless-4.10.0.dist-info", "wandb-1.0.dist-info", "numpy-2.0.0.dist-info", "numpy"):
        (tmp_path / name).mkdir()
    assert _versions([tmp_path]) == ["numpy-2.0.0.dist-info", "opencv_python_headless-4.10.0.dist-info"]


def test_a_process_keeps_its_digest() -> None:
    """The digest is of what the process was started with, and names the libraries it has."""
    assert build_digest() == build_digest()
    assert len(build_digest()) == 32
