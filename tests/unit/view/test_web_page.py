"""The web page over real HTTP: what it sends to whom, with which headers, and how often it looks."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from feedd.view.web_page import DUMP_BYTES, WebPage, dump, picture_type
from feedd.wire import feedd_pb2 as pb
from tests.fakes.pages import JPEG, FakeNode, busy_look, serving_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = "t0ken"
EVIL = "<script>alert(1)</script>"


@asynccontextmanager
async def _page(node: FakeNode) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with serving_page(node, TOKEN) as address, aiohttp.ClientSession() as client:
        yield client, f"http://{address}/"


async def _json(client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with client.get(url) as answer:
        assert answer.content_type == "application/json"
        return dict(json.loads(await answer.text()))


async def test_names_are_for_those_who_have_the_token() -> None:
    """Without the token: numbers, and nothing that tells what the data is, or whose."""
    node = FakeNode(log=[pb.LogEntry(text="disk of s3://bucket", level="error", count=1)])
    async with _page(node) as (client, url):
        async with client.get(f"{url}view.json") as answer:
            shown = await answer.text()
        for name in ("bucket", "uid 1000", "samples are bad", "key-1"):
            assert name not in shown
        anybody = json.loads(shown)
        assert (anybody["private"], [job["name"] for job in anybody["jobs"]]) == (False, ["job 1"])
        assert anybody["bad_sample_count"] == 3
        mine = await _json(client, f"{url}{TOKEN}/view.json")
        assert (mine["private"], mine["jobs"][0]["urls"]) == (True, ["s3://bucket/train/"])
        assert [one["key"] for one in mine["bad_samples"]] == ["key-1", "key-2"]
        assert mine["log"][0]["text"] == "disk of s3://bucket"


async def test_a_verdict_names_its_job_to_those_who_have_the_token() -> None:
    """Of two jobs, the verdict says which one it is about: by its name, or by its number."""
    node = FakeNode(look_at=lambda at_s: busy_look(at_s, 4))
    async with _page(node) as (client, url):
        for _ in range(4):
            mine = await _json(client, f"{url}{TOKEN}/view.json")
            node.wait()
        anybody = await _json(client, f"{url}view.json")
    assert (mine["verdict"]["job"], mine["limits"], mine["waiting"]) == ("imagenet/train", True, "")
    assert anybody["verdict"]["job"] in {"job 1", "job 2"}
    assert "imagenet" not in json.dumps(anybody)


async def test_only_new_points_are_sent() -> None:
    """A page that has a view gets the points of histories since then; one that has none, or another's, gets all."""
    node = FakeNode()
    async with _page(node) as (client, url):
        for _ in range(5):
            first = await _json(client, f"{url}view.json?since=0")
            node.wait()
        assert [len(rank["waits"]) for rank in first["ranks"]] == [4, 4]
        last = await _json(client, f"{url}view.json?since={first['number']}")
        assert [len(rank["waits"]) for rank in last["ranks"]] == [1, 1]
        for since in ("999999", "-1", "1e9", "x" * 5000, "\N{SUPERSCRIPT TWO}"):
            again = await _json(client, f"{url}view.json?since={since}")
            assert [len(rank["waits"]) for rank in again["ranks"]] == [5, 5]


async def test_the_node_is_looked_at_once_a_second_at_most() -> None:
    """Many requests share a look, and nothing looks when nobody asks."""
    node = FakeNode()
    async with _page(node) as (client, url):
        async with client.get(url) as answer:
            assert answer.status == 200
        assert node.look_count == 0
        for _ in range(5):
            await _json(client, f"{url}view.json")
        assert node.look_count == 1


async def test_every_answer_is_locked_down() -> None:
    """Types are told and not guessed, nothing is stored or framed, and scripts are this page's own files."""
    async with _page(FakeNode()) as (client, url):
        for name, kind in {
            "": "text/html",
            "view.css": "text/css",
            "view.js": "text/javascript",
            "charts.js": "text/javascript",
            "icon.svg": "image/svg+xml",
            "view.json": "application/json",
            "samples/0-1": "image/jpeg",
            "samples/0-2": "text/plain",
            "samples/0-1.txt": "text/plain",
        }.items():
            async with client.get(f"{url}{TOKEN}/{name}") as answer:
                assert (answer.status, answer.content_type) == (200, kind), name
                headers = answer.headers
                assert headers["X-Content-Type-Options"] == "nosniff"
                assert headers["Referrer-Policy"] == "no-referrer"
                assert headers["Cache-Control"] == "no-store"
                policy = headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'")
                assert "unsafe" not in policy
                assert ("sandbox" in policy) == name.startswith(("samples", "view.json"))


async def test_samples_are_for_the_token_only() -> None:
    """Pictures of others, samples that are gone, and names that are none are all not found."""
    async with _page(FakeNode()) as (client, url):
        for path in (
            "samples/0-1",
            f"{TOKEN}/samples/0-9",
            f"{TOKEN}/samples/",
            f"{TOKEN}/samples/{'1' * 100}",
            f"{TOKEN}/samples/..%2f..%2fetc%2fpasswd",
            f"{TOKEN}/nothing",
            f"{TOKEN}/../view.py",
        ):
            async with client.get(f"{url}{path}") as answer:
                assert answer.status == 404, path
        async with client.get(f"{url}{TOKEN}/samples/0-1") as answer:
            assert await answer.read() == JPEG


async def test_a_daemon_that_is_gone_is_told() -> None:
    """If no daemon answers, the page gets a reason and asks again."""
    node = FakeNode(is_down=True)
    async with _page(node) as (client, url), client.get(f"{url}view.json") as answer:
        assert answer.status == 503
        assert await answer.text() == "no daemon answers"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"\0\0\0\x20ftypavif", "image/avif"),
        (b"BM\0\0", "image/bmp"),
        (b"RIFF\0\0\0\0WAVE", ""),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", ""),
        (b"<!doctype html>", ""),
        (b"%PDF-1.7", ""),
        (b"", ""),
    ],
)
def test_pictures_are_told_by_their_first_bytes(data: bytes, expected: str) -> None:
    """Formats that cannot hold scripts are pictures; everything else is text."""
    assert picture_type(data) == expected


def test_a_dump_is_short_and_printable() -> None:
    """Bytes in hexadecimal and as text, without control characters, and never more than the first ones."""
    assert dump(b"<html>\n\0") == "0000  3c 68 74 6d 6c 3e 0a 00                          <html>.."
    text = dump(bytes(range(256)) * 8)
    assert text.endswith("\n(2,048 bytes in all)")
    assert len(text.splitlines()) == DUMP_BYTES // 16 + 1
    assert all(char == "\n" or char.isprintable() for char in text)


def test_a_page_that_nobody_opened_knows_nothing() -> None:
    """Making the page looks at nothing and reads no file."""

    async def never(*_: object) -> Any:  # what a look returns
        raise AssertionError

    WebPage(never, never)
