"""``feedd cache``: what it shows is what is there, and it removes only what it was told to, from nobody's hands."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache.cache import Cache
from feedd.cache.inspection import matches
from feedd.cache.lock import DirectoryLock
from feedd.cache.options import CacheOptions
from feedd.clock import SystemClock
from feedd.config.models import DEFAULT_CACHE_DIR
from feedd.observe.recorder import NullRecorder
from tests.fakes.fetchers import MemoryFetcher

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Feedd


URLS = ["s3://bucket/new/c.tar", "s3://bucket/old/a.tar", "s3://bucket/old/b.tar"]


async def _fill(directory: Path) -> None:
    fetcher = MemoryFetcher()
    refs = [fetcher.put(url.removeprefix("s3://bucket/"), b"x" * 1000) for url in URLS]
    options = CacheOptions(directory, 1 << 24, free_reserve_bytes=0)
    async with Cache(options, fetcher, NullRecorder(), SystemClock()) as cache:
        for ref in refs:
            (await cache.acquire([ref])).release()


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache directory with three objects, as a daemon that has ended leaves it."""
    directory = tmp_path / "cache"
    asyncio.run(_fill(directory))
    return directory


def _urls(feedd: Feedd, cache_dir: Path) -> list[str]:
    return [entry["url"] for entry in json.loads(feedd("cache", "ls", "--json", "--cache-dir", cache_dir).out)]


def test_list_shows_every_object(feedd: Feedd, cache_dir: Path) -> None:
    """URLs in order, sizes, a total; as a table and as JSON."""
    table = feedd("cache", "ls", "--cache-dir", cache_dir)
    assert table.code == 0
    assert "3 objects" in table.out
    assert [url for url in URLS if url in table.out] == URLS
    assert _urls(feedd, cache_dir) == URLS
    only = json.loads(feedd("cache", "ls", "s3://bucket/new/", "--json", "--cache-dir", cache_dir).out)
    assert [(entry["url"], entry["size_bytes"]) for entry in only] == [(URLS[0], 1000)]


def test_stat_adds_up(feedd: Feedd, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and bytes are the sums of what is listed."""
    monkeypatch.setenv("FEEDD_CACHE__SIZE", "1GiB")
    facts = json.loads(feedd("cache", "stat", "--json", "--cache-dir", cache_dir).out)
    assert (facts["entries"], facts["object_bytes"], facts["size_bytes"]) == (3, 3000, 1 << 30)
    assert "entries" in feedd("cache", "stat", "--cache-dir", cache_dir).out


def test_remove_takes_what_matches(feedd: Feedd, cache_dir: Path) -> None:
    """A prefix or a shell pattern removes those, and leaves the others."""
    outcome = feedd("cache", "rm", "s3://bucket/old/a*", "--yes", "--cache-dir", cache_dir)
    assert (outcome.code, outcome.out) == (0, "removed 1 object, 1000B\n")
    assert _urls(feedd, cache_dir) == [URLS[0], URLS[2]]
    assert feedd("cache", "rm", "--all", "-y", "--cache-dir", cache_dir).code == 0
    assert _urls(feedd, cache_dir) == []


def test_remove_asks_first(feedd: Feedd, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes the answer decides; anything but yes changes nothing."""
    answers = iter(["n", "y"])
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda *_: next(answers))
    assert feedd("cache", "rm", "--all", "--cache-dir", cache_dir).code == 1
    assert _urls(feedd, cache_dir) == URLS
    assert feedd("cache", "rm", "--all", "--cache-dir", cache_dir).code == 0
    assert _urls(feedd, cache_dir) == []


def test_remove_needs_a_pattern_or_all(feedd: Feedd, cache_dir: Path) -> None:
    """Neither or both is wrong usage; a pattern that matches nothing is told."""
    assert feedd("cache", "rm", "--cache-dir", cache_dir).code == 2
    assert feedd("cache", "rm", "s3://x/", "--all", "--cache-dir", cache_dir).code == 2
    assert feedd("cache", "rm", "s3://x/", "--yes", "--cache-dir", cache_dir).code == 1
    assert _urls(feedd, cache_dir) == URLS


def test_remove_is_refused_while_a_daemon_owns_the_directory(feedd: Feedd, cache_dir: Path) -> None:
    """A running daemon's files are not pulled from under it; looking is allowed."""
    with DirectoryLock(cache_dir):
        outcome = feedd("cache", "rm", "--all", "--yes", "--cache-dir", cache_dir)
        assert _urls(feedd, cache_dir) == URLS
    assert outcome.code == 1
    assert "in use by process" in outcome.err


def test_a_file_is_no_cache(feedd: Feedd, tmp_path: Path) -> None:
    """A file where the directory should be is told, not shown as an empty cache."""
    (tmp_path / "file").write_text("x")
    outcome = feedd("cache", "ls", "--cache-dir", tmp_path / "file")
    assert outcome.code == 1
    assert str(tmp_path / "file") in outcome.err
    assert "a file is in the way" in outcome.err


def test_a_directory_that_does_not_exist_is_empty(feedd: Feedd, tmp_path: Path) -> None:
    """Nothing was cached yet: no error, and nothing is made."""
    assert _urls(feedd, tmp_path / "none") == []
    assert feedd("cache", "rm", "--all", "--yes", "--cache-dir", tmp_path / "none").code == 0
    assert not (tmp_path / "none").exists()


def test_warm_brings_local_files(feedd: Feedd, tmp_path: Path) -> None:
    """Without a daemon the directory itself is filled: all of it, a node's share of it, and no object twice."""
    data, cache_dir = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    for name in "abc":
        (data / name).write_bytes(name.encode() * 1000)
    options = ("--cache-dir", cache_dir, "--cache-size", "1MiB", "--set", "cache.free_reserve=0")
    share = feedd("cache", "warm", data, "--nodes", "2", "--node-rank", "1", *options)
    assert (share.code, share.out) == (0, "")
    assert share.err.splitlines()[-1] == "feedd: 1 object: 1 warmed (1000B), 0 there before (0B)"
    assert _urls(feedd, cache_dir) == [f"file://{data}/b"]
    facts = json.loads(feedd("cache", "warm", data, "--json", *options).out)
    assert (facts["warmed"], facts["present"]) == ({"objects": 2, "bytes": 2000}, {"objects": 1, "bytes": 1000})
    assert facts["errors"] == []
    assert _urls(feedd, cache_dir) == [f"file://{data}/{name}" for name in "abc"]


def test_warm_says_what_has_no_room(feedd: Feedd, tmp_path: Path) -> None:
    """A cache too small is an error that brings nothing; --fit takes what has room and says what has not."""
    data, cache_dir = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    for name in "abc":
        (data / name).write_bytes(bytes(500_000))
    options = ("--cache-dir", cache_dir, "--cache-size", "1MiB", "--set", "cache.free_reserve=0")
    refused = feedd("cache", "warm", data, *options)
    assert refused.code == 1
    assert "2 of 3 objects would fit" in refused.err
    assert _urls(feedd, cache_dir) == []
    fitted = feedd("cache", "warm", data, "--fit", *options)
    assert fitted.code == 0
    assert "1 object, 488.3KiB, found no room" in fitted.err
    assert len(_urls(feedd, cache_dir)) == 2


def test_warm_refuses_nonsense(feedd: Feedd, cache_dir: Path) -> None:
    """A node that cannot be, an unknown way to split, a URL that names nothing and an absent daemon are told."""
    for arguments in (("--nodes", "2"), ("--node-rank", "1"), ("--sharding", "rows"), ("--field", "n")):
        assert feedd("cache", "warm", "/data", *arguments, "--cache-dir", cache_dir).code == 2
    missing = feedd("cache", "warm", cache_dir / "none", "--cache-dir", cache_dir, "--set", "cache.free_reserve=0")
    assert missing.code == 1
    nobody = feedd("cache", "ls", "--address", f"unix://{cache_dir}/none.sock", "--cache-dir", cache_dir)
    assert nobody.code == 1
    assert "no daemon answers" in nobody.err


@pytest.mark.parametrize(
    ("pattern", "hit"),
    [("", True), ("s3://b/a", True), ("s3://b/x", False), ("s3://*/a?.tar", True), ("*.zip", False), ("a", False)],
)
def test_patterns(pattern: str, hit: bool) -> None:
    """Prefixes match from the start; patterns match the whole URL."""
    assert matches("s3://b/ab.tar", pattern) is hit


@pytest.mark.parametrize("command", [("ls",), ("stat",), ("rm", "s3://bucket/"), ("warm", "s3://bucket/")])
def test_the_daemon_of_the_environment_is_asked(
    feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """FEEDD_ADDRESS names the daemon for every command; one that is not there is an error, not an empty directory."""
    monkeypatch.setenv("FEEDD_ADDRESS", f"unix://{tmp_path}/nobody.sock")
    outcome = feedd("cache", *command)
    assert outcome.code == 1
    assert f"{tmp_path}/nobody.sock" in outcome.err


def test_a_named_directory_outranks_the_environment(
    feedd: Feedd, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--cache-dir asks that directory, whatever FEEDD_ADDRESS says: a flag outranks the environment."""
    monkeypatch.setenv("FEEDD_ADDRESS", "unix:///nobody.sock")
    assert _urls(feedd, cache_dir) == URLS


@pytest.mark.parametrize("command", [("ls",), ("stat",), ("rm", "s3://bucket/old/", "--yes")])
def test_a_default_directory_that_does_not_exist_is_an_error(
    feedd: Feedd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A directory that nobody named and nobody made says nothing about the cache that the user means."""
    monkeypatch.delenv("FEEDD_ADDRESS", raising=False)
    monkeypatch.setattr("feedd.config.loading.find_file", lambda *_: None)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **how: path != DEFAULT_CACHE_DIR and exists(path, **how))
    outcome = feedd("cache", *command)
    assert outcome.code == 1
    assert "expected a cache directory, got none" in outcome.err
    assert "FEEDD_ADDRESS" in outcome.err


def test_stat_names_the_bytes_it_holds(feedd: Feedd, cache_dir: Path) -> None:
    """The table for people says what the JSON's object_bytes are."""
    assert "cached         2.9KiB" in feedd("cache", "stat", "--cache-dir", cache_dir).out
