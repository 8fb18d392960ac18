"""Lists in one URL: what braces and ``::`` stand for."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.braces import URLS_MAX, Allowance, expand, split
from feedd.catalog.url_lists import lists_of
from feedd.errors import BadRequest

# What bash makes of them, but for what it does with a lonely brace and with what looks like a variable.
EXPANDED = {
    "a{0..2}b": ["a0b", "a1b", "a2b"],
    "{00..10..5}": ["00", "05", "10"],
    "{01..3}": ["01", "02", "03"],
    "{-01..1}": ["-01", "000", "001"],
    "{5..3}": ["5", "4", "3"],
    "{0..9..-4}": ["0", "4", "8"],
    "{3..3}": ["3"],
    "{a..c}": ["a", "b", "c"],
    "{c..a..2}": ["c", "a"],
    "{train,extra}/{0,1}.tar": ["train/0.tar", "train/1.tar", "extra/0.tar", "extra/1.tar"],
    "x{,y}": ["x", "xy"],
    "{a,b{1..2},{c,d}}": ["a", "b1", "b2", "c", "d"],
    "{{0..1}}": ["{0}", "{1}"],
    "{0..1}{": ["0{", "1{"],
}
ITSELF = ["s3://b/a.tar", "{a}", "{a,b", "a}b{", "{}", "{1..}", "{a..1}", "{..}", "{1..2..}", "{0..a}", "{a..Z}"]


@pytest.mark.parametrize("text", EXPANDED)
def test_braces_are_those_of_a_shell(text: str) -> None:
    """In the order they are written, the last group first."""
    assert expand(text) == EXPANDED[text]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, to ask")
@given(st.text("ab0129{},.-", max_size=14))
def test_a_shell_says_the_same(text: str) -> None:
    """Of whatever has its braces in pairs, and neither empty words nor such that differ between shells' versions."""
    depth = list(itertools.accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in text))
    if not text or min(depth) < 0 or depth[-1] or re.search(r"\{-|\.-|\{\d{5}|\.\d{5}|-0", text) or "{}" in text:
        return
    found = expand(text)
    if "" in found or len(found) > 1000:
        return
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {text}"], capture_output=True, text=True, check=True)
    assert found == shell.stdout.split("\n")[:-1]


@pytest.mark.parametrize("text", ITSELF)
def test_what_is_no_list_is_itself(text: str) -> None:
    """Braces without a comma or a range, or without their partner, are part of a name."""
    assert expand(text) == [text]


@pytest.mark.parametrize("text", ["{0..99999999}", "{0..999}{0..999}", "{0..999999999999999999}", "{a,b}" * 5000])
def test_too_many_are_refused_by_their_number(text: str) -> None:
    """Before any name is made, with what to do instead."""
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=f"at most {URLS_MAX} others, got one for [0-9]+") as caught:
            expand(f"s3://b/{text}.tar")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20  # a list of the names would take more
    finally:
        tracemalloc.stop()
    assert "manifest" in caught.value.hint
    assert len(caught.value.object) < 500


def test_as_many_as_are_allowed() -> None:
    """The last is there, too."""
    found = expand(f"s3://b/{{000000..{URLS_MAX - 1}}}.tar")
    assert (len(found), found[-1]) == (URLS_MAX, "s3://b/099999.tar")


@pytest.mark.slow
def test_deep_and_hostile_braces_end() -> None:
    """Neither depth nor length takes long."""
    with pytest.raises(BadRequest, match="deep"):
        expand("{a," * 20 + "b" + "}" * 20)
    for text in ("{" * 200_000, "{x" * 50_000 + "}" * 50_000, "{" * 50_000 + "}" * 50_000, "{,x" * 50_000):
        began_s = time.thread_time()
        assert expand(text) == [text]
        assert time.thread_time() - began_s < 5.0


@given(st.text("{},.019a-", max_size=40))
def test_whatever_is_written_there_is_an_answer(text: str) -> None:
    """Some URLs, or BadRequest; what has no opening brace is itself."""
    try:
        found = expand(text)
    except BadRequest:
        return
    assert found
    assert "{" in text or found == [text]


def test_lists_of_urls() -> None:
    """Where a URL follows ``::`` is between two; else it is part of a name."""
    assert split("s3://b/a::s3://c/d::tar+file:///e") == ["s3://b/a", "s3://c/d", "tar+file:///e"]
    assert split("s3://b/a::b") == ["s3://b/a::b"]
    assert split("s3://b/a::/b") == ["s3://b/a::/b"]
    assert split("/a::/b::s3://c/d") == ["/a", "/b", "s3://c/d"]
    assert split("s3://b/{0..1}::s3://b/x") == ["s3://b/{0..1}", "s3://b/x"]


def test_the_urls_of_a_request_share_one_bound() -> None:
    """What all lists of a request stand for, together, is bounded; the error says what went before."""
    half = f"s3://b/{{1..{URLS_MAX // 2}}}"
    assert len(lists_of([half, half])) == 2
    with pytest.raises(BadRequest, match=f"got one for {URLS_MAX // 2}, in addition to {URLS_MAX}"):
        lists_of([half, half, half])
    allowance = Allowance()
    lists_of([half], allowance)
    lists_of([half], allowance)
    with pytest.raises(BadRequest, match="in addition to"):
        lists_of(["s3://b/{1,2}"], allowance)
