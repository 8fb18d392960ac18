"""Which keys climb out of their folder, for servers of any leniency."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedd.access import FILE_ROOT, STORES_ONLY, Access, climbs
from feedd.catalog.urls import parse_url
from feedd.catalog.web_urls import SCHEMES
from feedd.errors import BadRequest, FeeddError, PermissionDenied
from tests.budget import budget
from tests.unit.dataset.test_frozen_manifest import manifest

WEB = "https://h"
CLIMBING = [
    "..",
    "../x",
    "a/..",
    "a/../x",
    "a/./x",
    "..\\x",
    "a\\..\\x",
    "..;/x",
    "..;v=1/x",
    "a;v/..",
    "%2e%2e/x",
    "%2E%2e/x",
    ".%2e/x",
    "%2e./x",
    "..%2fx",
    "..%2Fx",
    "..%5cx",
    "..%5Cx",
    "%2e%2e%2fx",
    "a%2f..%2fx",
    "a%5c..%5cx",
    "..%3bv/x",
    "..%3fx",
    "..%23x",
    "%252e%252e/x",
    "..%252fx",
    "..%255cx",
    "%25252e%25252e%25252fx",
    "%2525252e%2525252e/x",
    "%25%32%65%25%32%65/x",
    "%%32%65%%32%65/x",
    "%2%65%2%65/x",
    "..%c0%afx",
    "%c0%ae%c0%ae/x",
    "%C0%AE./x",
    "..%c1%9cx",
    "..%e0%80%afx",
    "%e0%80%ae%e0%80%ae/x",
    "..%f0%80%80%afx",
    "..%f8%80%80%80%afx",
    "..%fc%80%80%80%80%afx",
    "..%c0%2fx",
    "..%c0/x",
    "%c0../x",
    "..%25c0%25afx",
    "%u002e%u002e/x",
    "..%u2215x",
    "..%uff0fx",
    "\uff0e\uff0e/x",
    "..\uff0fx",
    "..\uff3cx",
    "%ef%bc%8e%ef%bc%8e/x",
    "..%ef%bc%8fx",
    "\uff052e\uff052e/x",
    "\u2024\u2024/x",
    "\u2025/x",
    "a/\u2026/x",
    "..\u2215x",
    "..\u2044x",
    "..\u2216x",
    "\ufe52\ufe52/x",
    ".\u200b./x",
    ".%e2%80%8b./x",
    "..%20/x",
    ".. /x",
    " ../x",
    "%20../x",
    ".../x",
    ".. ./x",
    "..+/x",
    "a\0b",
    "a%00b",
    "..%00/x",
    "%c0%80",
    "a%0d%0ab",
    "a%0ab",
    "a\tb",
    "a%7fb",
    "x?path=../../y",
    "x?path=..",
    "x?path=..%2f..%2fy",
    "x?../y",
    "x#/../y",
    "x?a=1&b=..\\y",
    "\ud800",
    "%25252525252525252561",
]
PLAIN = [
    "",
    "a",
    "a/b.tar",
    "a..b",
    "a../b",
    "..a/b",
    "a/..b/c",
    "a/.hidden",
    ".hidden/a",
    "a/b..",
    "v1.0..v2.0/x",
    "a b%20c?x=1&y=.5",
    "100%.tar",
    "100%25.tar",
    "50%2525/x",
    "a%2fb",
    "a%5cb",
    "a;b/c;d",
    "date=2024-01-01/x.parquet",
    "x?v=..1",
    "\u00e9t\u00e9/\u65e5\u672c.jpg",
    "%C3%A9t%C3%A9.jpg",
    "%E9t%E9.jpg",
    "e\u0301.jpg",
    "%C0.txt",
    "wait\u2026.txt",
    "hello ... world.txt",
    "a/~b/!c'(d)*",
    "\xbd.txt",
]


@pytest.mark.parametrize("key", CLIMBING)
def test_known_faces_climb(key: str) -> None:
    """In every store that may decode or resolve keys, alone and below a folder."""
    for root in (WEB, "http://h:80", "hf://datasets/o/n", "gs://b", "az://c", "installed://x"):
        assert climbs(root, key)
        assert climbs(root, f"team/{key}")
        assert not Access((f"{root}/",)).covers(root, f"team/{key}")


@pytest.mark.parametrize("key", PLAIN)
def test_names_do_not_climb(key: str) -> None:
    """Dots inside of names, percent signs and letters of any language are names like others."""
    assert not climbs(WEB, key)
    assert Access((f"{WEB}/team/",)).covers(WEB, f"team/{key}")


@pytest.mark.parametrize("key", [*CLIMBING, *PLAIN])
def test_keys_of_s3_are_names(key: str) -> None:
    """S3 compares keys letter by letter, so nothing in them leads anywhere."""
    assert not climbs("s3://b", key)
    assert Access(("s3://b/team/",)).covers("s3://b", f"team/{key}")


@pytest.mark.parametrize(
    ("path", "climbing"),
    [
        ("/a/../b", True),
        ("/a/..", True),
        ("../a", True),
        ("/a\0b", True),
        ("/a/..%2fb", False),
        ("/a/%2e%2e/b", False),
        ("/a/..\\b", False),
        ("/a/.../b", False),
        ("/a/..b", False),
        ("/a/./b", False),
    ],
)
def test_paths_of_files_are_taken_as_written(path: str, *, climbing: bool) -> None:
    """The file system decodes nothing, and only slashes separate."""
    assert climbs(FILE_ROOT, path) is climbing


@pytest.mark.parametrize("key", [key for key in CLIMBING if "#" not in key])
@pytest.mark.parametrize("start", ["https://h/team/", "http://h:8080/team/", "hf://datasets/o/n/team/"])
@pytest.mark.parametrize("kind", ["", "text+", "manifest+", "augmented+", "frozen+"])
def test_urls_that_climb_are_malformed(kind: str, start: str, key: str) -> None:
    """Whether the daemon has rules or none, and whatever the URL is for."""
    with pytest.raises(FeeddError, match=r"expected (a path without|a URL)"):
        parse_url(f"{kind}{start}{key}")


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/../..",
        "hf://datasets/../../x",
        "hf://datasets/o/../x",
        "hf://datasets/o/n@../x",
        "hf://datasets/o/n@%2e%2e/x",
        "hf://datasets/o/n@refs%2fpr%2f../x",
        "hf://datasets/o/n@..%2f..%2fm/x",
        "hf://datasets/o/n@refs/pr/../x",
        "https://../x",
        "s3://../x",
        "s3://./x",
    ],
)
def test_names_of_stores_do_not_climb(url: str) -> None:
    """Name and revision of a dataset, and a bucket, are parts of the request's path as well."""
    with pytest.raises(BadRequest):
        parse_url(url)


_ASCII = ". .. / \\ ; % 2e 2f 5c 25 %2e %2f %5c %25 %252e %252f %3b %00 %c0%ae %c0%af ? = & + a @ %32 %65 %66 .tar team"
_PIECES = st.sampled_from((*_ASCII.split(), " ", "\xe9", "\uff0e", "\uff0f"))
_TEXTS = st.one_of(st.lists(_PIECES, max_size=14).map("".join), st.text(max_size=40))


def _reaches(path: str, decodings: int, *, lenient: bool) -> str:
    """Return the path that a server serves: a lenient one knows parameters and backslashes."""
    for _ in range(decodings):
        path = unquote(path, errors="surrogateescape")
    if lenient:
        path = "/".join(part.partition(";")[0] for part in re.split(r"[/\\]", path))
    return posixpath.normpath(path)


def outside(key: str) -> list[str]:
    """Return the paths outside of ``/team/`` that servers would serve for a key."""
    found = []
    for asked in (key, key.partition("?")[0]):
        for decodings in range(4):
            for lenient in (False, True):
                reached = _reaches(f"/team/{asked}", decodings, lenient=lenient)
                if reached != "/team" and not reached.startswith("/team/"):
                    found.append(reached)
    return found


@settings(deadline=None, max_examples=budget(2000))
@given(_TEXTS)
@example("..%2fprivate")
@example("%252e%252e%252f")
@example("..;/x")
def test_no_text_leads_out_of_its_folder(key: str) -> None:
    """For servers that decode up to three times, resolve dots, and take backslashes and parameters as some do."""
    assert climbs(WEB, key) or not outside(key)


@settings(deadline=None, max_examples=budget(1000))
@given(st.lists(_TEXTS, min_size=1, max_size=6))
def test_many_keys_at_once_are_judged_like_each(keys: list[str]) -> None:
    """Joined by slashes, they climb if one does. If a manifest finds all of them plain, none climbs."""
    assert climbs(WEB, "/".join(keys)) is any(climbs(WEB, key) for key in keys)
    keys = [key for key in keys if key]
    if manifest([(key, 0, "", 0) for key in keys]).has_plain_keys:
        assert not any(climbs(WEB, key) or outside(key) for key in keys)
    assert climbs(FILE_ROOT, "/".join(keys)) is any(climbs(FILE_ROOT, key) for key in keys)


def test_all_stores_but_s3_are_judged() -> None:
    """A scheme that is added later is judged as well."""
    for scheme in SCHEMES:
        assert climbs(f"{scheme}://x", "a/..%2fb")
        assert not Access(STORES_ONLY).covers(f"{scheme}://x", "a/..%2fb")
    with pytest.raises(PermissionDenied):
        Access(("gs://b/team/",)).check_names([("gs://b", "team/..%2fx")], "manifest+gs://b/team/m")
