"""Files below certain folders only, and never through a link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.errors import FeeddError, NotFound, PermissionDenied
from feedd.fetch.local_store import Anywhere, Beneath, LocalStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with a shard and links, beside a folder with a secret."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.tar").write_bytes(b"a")
    (tmp_path / "data" / "deep" / "b.tar").write_bytes(b"b")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_bytes(b"s")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "other" / "secret")
    (tmp_path / "data" / "inside").symlink_to(tmp_path / "data" / "a.tar")
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "data" / "fifo")
    return tmp_path


@pytest.mark.parametrize("path", ["data/a.tar", "data/deep/b.tar"])
def test_files_below_are_read(tree: Path, path: str) -> None:
    """By descriptors, one folder after another."""
    beneath = Beneath((f"{tree}/data/",))
    fd = beneath.open(str(tree / path))
    assert os.read(fd, 9) == (tree / path).read_bytes()
    os.close(fd)
    assert beneath.status(str(tree / path)).st_size == 1


@pytest.mark.parametrize(
    "path", ["other/secret", "data/link", "data/inside", "data/folder/secret", "data/../other/secret", "data/none", ""]
)
def test_nothing_else_is(tree: Path, path: str) -> None:
    """Neither beside the folder, nor through a link, wherever it leads."""
    beneath = Beneath((f"{tree}/data/",))
    with pytest.raises(OSError, match=r"."):
        os.close(beneath.open(str(tree / path)))


def test_a_rule_may_name_a_single_file(tree: Path) -> None:
    """And nothing beside it."""
    beneath = Beneath((f"{tree}/data/a.tar/",))
    os.close(beneath.open(str(tree / "data" / "a.tar")))
    with pytest.raises(PermissionError):
        beneath.open(str(tree / "data" / "deep" / "b.tar"))
    with pytest.raises(PermissionError):
        Beneath(()).open(str(tree / "data" / "a.tar"))


def test_the_folder_itself_may_be_a_link(tree: Path) -> None:
    """The operator chose it."""
    (tree / "chosen").symlink_to(tree / "data")
    os.close(Beneath((f"{tree}/chosen/",)).open(str(tree / "chosen" / "a.tar")))


async def test_a_store_lists_what_it_can_read(tree: Path) -> None:
    """Links and special files are left out below a rule; elsewhere links are followed, as ever."""
    found = [
        ref.key
        for page in [page async for page in LocalStore(1, (f"{tree}/data/",)).list(f"{tree}/data/")]
        for ref in page
    ]
    assert found == [f"{tree}/data/a.tar", f"{tree}/data/deep/b.tar"]
    anywhere = [ref.key for page in [page async for page in LocalStore(1).list(f"{tree}/data/")] for ref in page]
    assert set(anywhere) - set(found) == {f"{tree}/data/{name}" for name in ("link", "inside", "folder/secret")}
    store = LocalStore(1, (f"{tree}/data/",))
    for path, kind in (("other/secret", PermissionDenied), ("data/link", FeeddError), ("data/none", NotFound)):
        with pytest.raises(kind):
            await store.head(f"{tree}/{path}")


def test_both_trees_list_alike(tree: Path) -> None:
    """In the order of paths, folders with their slash, only what is wanted."""
    wanted = lambda path: b"deep" in path or path.endswith(b"a.tar")  # noqa: E731 - shorter than a function
    folder = f"{tree}/data/"
    for found in (Anywhere().scan(folder, wanted), Beneath((folder,)).scan(folder, wanted)):
        assert [os.fsdecode(one.path).removeprefix(folder) for one in found] == ["a.tar", "deep/"]
        assert [one.status is None for one in found] == [False, True]
