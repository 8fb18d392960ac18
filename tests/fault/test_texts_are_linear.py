"""Texts of strangers: whatever reaches a log or a parser takes time and memory by its length, never by its square."""

from __future__ import annotations

import contextlib
import statistics
import string
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from feedd.catalog.braces import expand, split
from feedd.catalog.manifest import MANIFEST_NAMES_MAX, names_in, parse_manifest
from feedd.catalog.urls import parse_url
from feedd.dataset.index_file import parse
from feedd.dataset.object_labels import parse_table
from feedd.dataset.sidecars import ForeignCounts
from feedd.errors import FeeddError
from feedd.observe.logs import redact, redact_text
from feedd.recipe.filters import parse_filter
from feedd.recipe.label_recipes import label_options, label_source
from feedd.recipe.recipe import parse_field
from feedd.units import parse_duration_s, parse_size
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import client_version
from tests.budget import later

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB: Final = 1 << 20
_CHARACTERS: Final = (*string.printable, "\0", "\x7f", "é", "\u2028", "漢", "🙂")
_RATIO_MAX: Final = 2.5
_QUICK_S: Final = 0.03
"""CPU time that is no trouble whatever it grows by: the ratio of such times would say how busy the machine is."""
_LENGTH: Final = _MIB // 4
"""Characters of the shorter text. A reader whose time grows by the square needs seconds for it."""
_ROUNDS: Final = 10


def _whole_text(text: str) -> None:
    redact_text(text, len(text))


def _logged(text: str) -> None:
    redact(None, "", {"event": text, "urls": [text], "error": ValueError(text), "exception": text, text[:64]: text})


def _version(text: str) -> None:
    client_version(pb.OpenRequest(client_version=text))


def _manifest(text: str, head: str = "") -> None:
    names_in((head + text).encode(), "manifest+s3://b/x")


def _field(text: str, before: str = "") -> None:
    parse_field("x", before + text)


def _claims(text: str, name: str = "index.json") -> None:
    for _ in ForeignCounts(name, text.encode()):
        pass


def _table(text: str, file: str) -> None:
    parse_table(file, text.encode(), "label")


_READERS: Final[dict[str, Callable[[str], object]]] = {
    "logged": _logged,
    "client version": _version,
    "manifest": _manifest,
    "manifest's names": partial(_manifest, head='[{"prefix": "s3://b/"}, "'),
    "url": parse_url,
    "braces": lambda text: expand("{" + text),
    "urls in one": split,
    "recipe": _field,
    "long recipe": partial(_field, before='{"decode": "'),
    "long recipe's values": partial(_field, before='{"decode": '),
    "image recipe": partial(_field, before="image:"),
    "label": lambda text: label_source("x", text),
    "label's options": label_options,
    "filter": parse_filter,
    "size": parse_size,
    "duration": parse_duration_s,
    "feedd's index": lambda text: parse(text.encode()),
    "index.json": _claims,
    "sizes.json": partial(_claims, name="sizes.json"),
    "labels.csv": partial(_table, file="labels.csv"),
    "labels.jsonl": partial(_table, file="labels.jsonl"),
}


def _cpu_s(read: Callable[[str], object], text: str) -> float:
    began_s = time.process_time()
    with contextlib.suppress(FeeddError, ValueError):
        read(text)
    return time.process_time() - began_s


@pytest.mark.parametrize("name", _READERS)
def test_twice_the_text_takes_twice_as_long(name: str) -> None:
    """Of 256 Ki of any one character, twice as much takes at most 2.5 times as long."""
    read = _READERS[name]
    for character in _CHARACTERS:
        ratios: list[float] = []
        for _ in range(_ROUNDS):  # by turns: a machine that slows down slows both
            twice = _cpu_s(read, character * 2 * _LENGTH)
            if twice < _QUICK_S:
                break
            ratios.append(twice / max(_cpu_s(read, character * _LENGTH), 1e-9))
            if statistics.median(ratios) <= _RATIO_MAX:
                break
        else:
            pytest.fail(f"{name} of {character!r}: twice the text took {statistics.median(ratios):.1f} times as long")


@pytest.mark.parametrize(
    "word",
    [
        *(one if one in "acGt" else later(one) for one in string.ascii_letters),
        ":",
        "/",
        " ",
        "@",
        "0",
        "x://",
        "a://b:",
        "token",
        "token=",
        "password = ",
        "://u:p",
        "Bearer ",
        "x-amz-",
        "eyJ",
        "-----BEGIN PRIVATE KEY",
        "AKIAIOSFODNN7EXAMPLE:",
        "shared_access_",
        "authorization ",
    ],
)
def test_patterns_for_secrets_are_linear(word: str) -> None:
    """Letters, and what a pattern for secrets begins with, again and again, take as long as their number says."""
    small, large = (word * (size // len(word)) for size in (_MIB // 16, _MIB // 4))
    for rounds in (1, 2, _ROUNDS):
        once = min(_cpu_s(_whole_text, small) for _ in range(rounds))
        four = min(_cpu_s(_whole_text, large) for _ in range(rounds))
        if four < _QUICK_S or four <= 2 * _RATIO_MAX * once:
            return
    pytest.fail(f"four times the text took {four / once:.1f} times as long")


@pytest.mark.parametrize(
    "element",
    ["[]", "{}", "null", "7", '""', '"a"', '{"a":[]}'],
    ids=["list", "object", "null", "7", "no", "a", "deep"],
)
@pytest.mark.parametrize("head", ["[", '[{"prefix": "s3://b/"},'], ids=["first", "behind a prefix"])
def test_a_manifest_of_anything_takes_no_more_than_itself(head: str, element: str) -> None:
    """A manifest of small elements is read, or refused, in little memory beside its own, whatever they are."""
    data = (head + f"{element}," * 50_000).encode()
    tracemalloc.start()
    try:
        with contextlib.suppress(FeeddError):
            for _ in parse_manifest(data, "manifest+s3://b/x"):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < _MIB // 2


def test_a_manifest_has_only_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """One name more than is allowed is refused, with the number that is."""
    assert MANIFEST_NAMES_MAX <= 10_000_000
    monkeypatch.setattr("feedd.catalog.manifest.MANIFEST_NAMES_MAX", 3)
    fits, more = (b'[{"prefix": "s3://b/"}' + b',"a"' * count + b"]" for count in (3, 4))
    assert len(names_in(fits, "u")) == 3
    with pytest.raises(FeeddError, match="at most 3 names"):
        names_in(more, "u")


def test_a_line_of_a_label_table_is_bounded() -> None:
    """One line as long as a whole table is refused before it is taken apart."""
    line = b'{"path": "a", "x": [' + b"[]," * _MIB + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="lines of at most"):
            parse_table("labels.jsonl", line, "label")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * _MIB
