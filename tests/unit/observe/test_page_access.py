"""The token of the status pages, and the file beside the socket that has it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from feedd.observe.page_access import PageAccess, noted_page, page_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "public", "private"),
    [
        ("/", (False, ""), (False, None)),
        ("/view.json", (False, "view.json"), (False, None)),
        ("/secret", (True, None), (True, None)),
        ("/secret/", (True, ""), (True, "")),
        ("/secret/samples/0-1", (True, "samples/0-1"), (True, "samples/0-1")),
        ("/Secret/x", (False, "Secret/x"), (False, None)),
        ("//secret/x", (False, "/secret/x"), (False, None)),
        ("/\N{SNOWMAN}/x", (False, "\N{SNOWMAN}/x"), (False, None)),
    ],
)
def test_the_first_part_of_the_path_is_the_token(
    path: str, public: tuple[bool, str | None], private: tuple[bool, str | None]
) -> None:
    """Only the whole token is trusted; without it, pages that are not public have nothing."""
    assert PageAccess("secret").split(path) == public
    assert PageAccess("secret", public=False).split(path) == private


def test_lanes_trust_their_supervisor() -> None:
    """At sockets that only the supervisor can open there is no token."""
    assert PageAccess("").split("/observe") == (True, "observe")


def test_tokens_are_random_and_not_shown() -> None:
    """Two tokens differ, have 144 random bits, and are in no repr, which ends in logs."""
    one, other = PageAccess.fresh(public=True), PageAccess.fresh(public=True)
    assert one.token != other.token
    assert len(one.token) == 24
    assert one.token not in repr(one)
    assert one.url("127.0.0.1:7071") == f"http://127.0.0.1:7071/{one.token}/"


async def test_the_address_is_kept_for_the_user(short_dir: Path) -> None:
    """The file is for its user only, and goes with the daemon, unless a successor has replaced it."""
    address = f"unix://{short_dir}/feedd.sock"
    path = page_file(address)
    assert path is not None
    async with noted_page(["127.0.0.1:7070", address], "http://127.0.0.1:1/a/"):
        assert path.read_text() == "http://127.0.0.1:1/a/\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    async with noted_page([address], "http://127.0.0.1:1/a/"):
        path.write_text("http://127.0.0.1:1/b/\n")
    assert path.exists()
    async with noted_page(["127.0.0.1:7070"], "http://127.0.0.1:1/a/"):
        assert page_file("127.0.0.1:7070") is None


async def test_a_folder_that_cannot_be_written_is_no_error(short_dir: Path) -> None:
    """The page works without the file."""
    async with noted_page([f"unix://{short_dir}/missing/feedd.sock"], "http://127.0.0.1:1/a/"):
        assert not (short_dir / "missing").exists()
