"""Mutated bytes for every parser: so many each, and nightly some seconds; ``python -m tests.fuzz`` looks deeper."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from pathlib import Path

import pytest

from feedd.errors import BadShard
from feedd.formats.format_registry import get
from tests.budget import PATIENT_S
from tests.fakes.forks import Module
from tests.fuzz import judge, targets
from tests.fuzz.mutate import SIZE_MAX, mutated
from tests.fuzz.targets import TARGETS

TRIES = 20
SECONDS = 3  # nightly
GROUPS = 2  # processes


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Fuzz in a process of its own: what a native library does to it is not pytest's."""
    with tempfile.TemporaryDirectory(prefix="feedd-said-") as folder:
        log = Path(folder) / "err"
        with Module("tests.fuzz", arguments, os.environ, log) as process:
            said = process.communicate(PATIENT_S).decode()
            code, complaints = process.poll(), log.read_text()
    return subprocess.CompletedProcess(arguments, -1 if code is None else code, said, complaints)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("group", range(GROUPS))
def test_mutated_shards_are_read_or_refused(group: int, tmp_path: Path) -> None:
    """Whatever the bytes: an index within them and values, or BadShard or BadSample; no other error, hang or memory."""
    names = sorted(TARGETS)[group::GROUPS]
    done = _run(*names, f"--tries={TRIES}", "--seed=7", f"--keep={tmp_path}")
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert told == names, "expected every parser to say how many inputs it was given"


@pytest.mark.nightly
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_other_mutated_shards_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """The same for some seconds, with another seed each time."""
    seed = random.SystemRandom().randrange(1 << 31)
    done = _run(name, "--plain", f"--seconds={SECONDS}", f"--seed={seed}", f"--keep={tmp_path}")
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_what_is_found_is_kept_and_can_be_tried_again(tmp_path: Path) -> None:
    """An input is told as read or refused; one that breaks a reader ends the run and lies in a file."""
    (tmp_path / "good").write_bytes(targets.TAR)
    (tmp_path / "bad").write_bytes(b"x" * 600)
    for name, expected in (("good", "read"), ("bad", "refused")):
        done = _run("tar", "--plain", f"--input={tmp_path / name}", f"--keep={tmp_path}")
        assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_every_form_and_format_is_fuzzed() -> None:
    """What a URL can lead to has a target."""
    from feedd.formats.format_registry import built_in  # noqa: PLC0415 - see above
    from feedd.tables.registry import _CONVERTERS, _OWN  # noqa: PLC0415 - see above

    known = built_in().keys() | set(_CONVERTERS) | set(_OWN)
    assert known - TARGETS.keys() == set()


def test_the_mutator_repeats_itself() -> None:
    """The same seed gives the same inputs, none larger than the bound; another seed gives others."""
    seeds = [b"abc" * 30_000, b"d", b""]
    first, again, other = ([mutated(seeds, source) for _ in range(200)] for source in map(random.Random, (1, 1, 2)))
    assert first == again != other
    assert max(map(len, first)) <= SIZE_MAX


def test_other_errors_are_findings() -> None:
    """A refusal is a verdict; any other error goes through, and so does an index that reaches beyond its shard."""

    def refuse(_data: bytes) -> None:
        raise BadShard("expected x")

    def break_down(_data: bytes) -> None:
        raise KeyError("x")

    assert not judge.verdict(refuse, b"")
    with pytest.raises(KeyError):
        judge.verdict(break_down, b"")
    index = get("text").index(memoryview(b"one\ntwo\n"), "s3://b/x.txt")
    judge.check_index(index, 8)
    with pytest.raises(AssertionError):
        judge.check_index(index, 6)
