"""Formats that the operator installed: which are used, which are refused, and that feedd's own come first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from feedd.clock import SystemClock
from feedd.config import load
from feedd.daemon.wiring import open_pipeline
from feedd.errors import Unsupported
from feedd.formats import format_registry as registry
from feedd.observe.recorder import NullRecorder
from feedd.recipe import plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CODE: Final = """
from feedd.formats.format_spec import FormatSpec

class Reader:
    def __init__(self, name):
        self.name = name

GOOD = FormatSpec(Reader("good"), (".good", ".go2"), begins=lambda data: bytes(data[:4]) == b"GOOD")
TAR = FormatSpec(Reader("tar"), (".other",))
CSV = FormatSpec(Reader("csv"), (".other",))
OTHER = FormatSpec(Reader("something"), (".other",))
TAKEN = FormatSpec(Reader("taken"), (".parquet",))
AGAIN = FormatSpec(Reader("zagain"), (".good",))
UPPER = FormatSpec(Reader("upper"), (".UP",))
NOTHING = 7
"""
_POINTS: Final = """
[feedd.formats]
good = feedd_fake_formats:GOOD
tar = feedd_fake_formats:TAR
csv = feedd_fake_formats:CSV
named = feedd_fake_formats:OTHER
taken = feedd_fake_formats:TAKEN
zagain = feedd_fake_formats:AGAIN
upper = feedd_fake_formats:UPPER
nothing = feedd_fake_formats:NOTHING
lost = feedd_fake_formats:LOST
"""


def _forget() -> None:
    for cache in (plugins.names, plugins.load, registry.installed, registry._known):
        cache.cache_clear()
    sys.modules.pop("feedd_fake_formats", None)


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with one format that works and eight that do not."""
    info = tmp_path / "feedd_fake_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feedd-fake-formats\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_POINTS)
    (tmp_path / "feedd_fake_formats.py").write_text(_CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield
    _forget()


def test_one_that_works_is_used_like_any_other() -> None:
    """It is known by its extensions, by the first bytes, and by its name."""
    assert registry.format_for("s3://b/x.good") == registry.format_for("s3://b/x.go2-00000-of-00002.gz") == "good"
    assert registry.sniff(memoryview(b"GOOD1234")) == "good"
    assert registry.get("good").name == "good"
    assert registry.extensions()["good"] == (".good", ".go2")
    with pytest.raises(Unsupported, match="good"):
        registry.get("nothing-of-that-name")


def test_what_cannot_be_used_is_logged_once_with_the_reason() -> None:
    """Names and extensions that feedd has stay feedd's; what is no spec, or does not load, is left out."""
    with capture_logs() as logs:
        assert set(registry.installed()) == {"good"}
        registry.installed()
    why = {line["name"]: line["error"] for line in logs}
    assert len(logs) == len(why) == 8
    assert "belongs to a format of feedd" in why["tar"]
    assert "belongs to a format of feedd" in why["csv"]
    assert "'something'" in why["named"]
    assert "['.parquet']" in why["taken"]
    assert "['.good']" in why["zagain"]
    assert "['.UP']" in why["upper"]
    assert "got int" in why["nothing"]
    assert "AttributeError" in why["lost"]


def test_own_formats_come_first() -> None:
    """No installed format takes a name or an extension from a format of feedd."""
    assert registry.get("tar") is registry.built_in()["tar"].reader
    assert registry.format_for("s3://b/x.tar") == "tar"


async def test_a_daemon_looks_for_them_when_it_starts(tmp_path: Path) -> None:
    """The log says at once what is unusable, and no request reads files on the event loop for it."""
    settings = {"cache.dir": str(tmp_path / "cache"), "cache.size": "64MiB", "decode.workers": "1"}
    config = load({name: (value, "the test") for name, value in settings.items()}, {}).config
    with capture_logs() as logs:
        async with open_pipeline(config, NullRecorder(), SystemClock()):
            assert sum(line["event"] == "installed plug-in cannot be loaded" for line in logs) == 8
            searched = plugins.names.cache_info().misses
            for group in (plugins.FORMATS, plugins.CODECS, plugins.TRANSFORMS, plugins.STORES):
                plugins.names(group)
            assert plugins.names.cache_info().misses == searched == 4
