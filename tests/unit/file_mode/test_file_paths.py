"""Where objects lie in a channel's directory: by their own names, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.errors import BadRequest
from feedd.file_mode.file_paths import PARTIAL_FOLDER, below_prefix, check_paths
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

_PIECES = st.text(alphabet="ab./\0-", max_size=9)


def _refs(paths: list[str]) -> list[ObjectRef]:
    return [ObjectRef("s3://b", f"p/{path}", 1, "e") for path in paths]


@pytest.mark.parametrize(
    ("key", "prefix", "path"),
    [
        ("p/a/b.jpg", "p/", "a/b.jpg"),
        ("p/a/b.jpg", "p", "a/b.jpg"),
        ("p/train/a", "p/tr", "train/a"),
        ("p/train.csv", "p/train.csv", "train.csv"),
        ("p/train.csv.old", "p/train.csv", "train.csv.old"),
        ("train.csv", "tr", "train.csv"),
        ("a/b", "", "a/b"),
        ("/a", "", "/a"),
        ("p//a", "p/", "/a"),
        ("p/../../etc/passwd", "p/", "../../etc/passwd"),
    ],
)
def test_a_path_is_the_key_below_the_folder_of_the_prefix(key: str, prefix: str, path: str) -> None:
    """With or without a final slash; names are never cut in two, and nothing is tidied up."""
    assert below_prefix(key, prefix) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "the name .. or ."),
        ("a/../x", "the name .. or ."),
        ("./x", "the name .. or ."),
        ("/etc/passwd", "begins with a slash"),
        ("a//b", "an empty name"),
        ("a/", "ends in a slash"),
        ("a\0b", "a zero byte"),
        ("", "an empty name"),
        (f"{PARTIAL_FOLDER}/x", "not whole yet"),
        ("n" * 256, "a name in it has more than 255 bytes"),
        ("ü" * 128, "a name in it has more than 255 bytes"),
        ("/".join(["n" * 200] * 16), "more than 3072 bytes"),
    ],
)
def test_a_key_that_is_no_file_name_is_refused(path: str, reason: str) -> None:
    """The error names the object and what is wrong with it."""
    with pytest.raises(BadRequest, match=reason) as refused:
        check_paths(_refs(["fine", path]), ["fine", path])
    assert refused.value.object == f"s3://b/p/{path}"


@pytest.mark.parametrize("paths", [["a", "a/b"], ["a/b/c", "x", "a"], ["a/b", "a/b/c/d"]])
def test_a_key_that_is_a_file_and_a_folder_is_refused(paths: list[str]) -> None:
    """The error names both objects."""
    with pytest.raises(BadRequest, match="got both: s3://b/p/") as refused:
        check_paths(_refs(paths), paths)
    assert refused.value.object in {ref.url for ref in _refs(paths)}


def test_two_objects_with_one_name_are_refused() -> None:
    """Two stores may have the same key."""
    refs = [ObjectRef("s3://b", "p/a", 1, "e"), ObjectRef("s3://other", "p/a", 1, "e")]
    with pytest.raises(BadRequest, match="got also s3://b/p/a"):
        check_paths(refs, ["a", "a"])


@given(st.sets(_PIECES, max_size=6).map(sorted))
def test_accepted_paths_are_files_below_the_directory(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str]
) -> None:
    """What is accepted can be written, each to a file of its own, and nothing lies outside."""
    try:
        check_paths(_refs(paths), paths)
    except BadRequest:
        return
    folder: Path = tmp_path_factory.mktemp("above") / "channel"
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(str(number))
    assert [(folder / path).read_text() for path in paths] == [str(number) for number in range(len(paths))]
    assert [one.name for one in folder.parent.iterdir()] == (["channel"] if paths else [])
