"""Single values and helpers: lines of a TOML file, defaults of the machine, descriptions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.config import ConfigProblems, load, options
from feedd.config import machine_defaults as machine
from feedd.config.machine_defaults import default_cache_bytes, existing_parent, memory_bytes, usable_cpus
from feedd.config.option_list import dotted, render
from feedd.config.toml_lines import line_of
from feedd.config.types import format_cpus

TEXT = """
listen = ["a"]   # first
[cache]
size = "1GiB"
[s3."a.b"]
'region' = "x"
[fetch]
part_size = 1
s3.c.profile = "not the top level"
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("listen",), 2),
        (("cache", "size"), 4),
        (("s3", "a.b", "region"), 6),
        (("fetch", "part_size"), 8),
        (("size",), None),
        (("cache", "dir"), None),
    ],
)
def test_lines_are_found(path: tuple[str, ...], line: int | None) -> None:
    """A name is found under its own table, quoted or not, and only there."""
    assert line_of(TEXT, path) == line


@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_line_search_survives_any_text(text: str, path: list[str]) -> None:
    """Whatever the file holds, the search ends with a line of it or with None."""
    line = line_of(text, tuple(path))
    assert line is None or 1 <= line <= len(text.splitlines())


def test_every_option_is_described_once() -> None:
    """Each option has a name of its own and a description that is one plain line."""
    names = [option.name for option in options()]
    assert len(names) == len(set(names)) > 30
    for option in options():
        assert option.description, option.name
        assert "\n" not in option.description


def test_environment_names_are_derived() -> None:
    """Variables follow from dotted names; bucket settings have none of their own."""
    by_name = {option.name: option.env for option in options()}
    assert by_name["cache.size"] == "FEEDD_CACHE__SIZE"
    assert by_name["listen"] == "FEEDD_LISTEN"
    assert by_name['s3."*".region'] == ""


def test_names_are_quoted_as_in_toml() -> None:
    """Parts with other characters than letters, digits, dash and underscore are quoted."""
    assert dotted(("s3", "a-b_c", "region")) == "s3.a-b_c.region"
    assert dotted(("s3", "a.b", "region")) == 's3."a.b".region'


def test_cache_default_is_half_of_its_file_system(tmp_path: Path) -> None:
    """A directory that does not exist yet counts for the file system it will lie on."""
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
    assert default_cache_bytes(tmp_path / "a" / "b") == default_cache_bytes(tmp_path) > 0


@pytest.mark.parametrize("blocks", [0, 100])
def test_cache_default_is_valid_on_any_file_system(
    blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that tells no size, or a tiny one, is no mistake in an option that nobody set."""
    real = os.statvfs(tmp_path)
    tiny = os.statvfs_result((4096, 4096, blocks, blocks, blocks, *tuple(real)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: tiny)
    config = load({"cache.dir": (str(tmp_path), "flag --cache-dir")}, {}).config
    assert config.cache.size == (1 << 20 if blocks else 1 << 30)


def test_memory_is_known() -> None:
    """The memory this process may use is a positive number of bytes."""
    assert memory_bytes() > 2**20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache.size", True),
        ("cache.size", 1.5),
        ("cache.dir", "relative/dir"),
        ("drain.grace", True),
        ("decode.workers", "0"),
        ("decode.workers", "-3"),
        ("decode.nice", "20"),
        ("decode.workers_max", "0"),
        ("decode.cpus", "0-1023"),
        ("decode.cpus", "3-1"),
        ("decode.cpus", "first"),
        ("decode.cpus", True),
        ("listen", []),
        ("listen", "unix:///" + "x" * 120),
        ("listen", "http://x:1"),
        ("listen", "a:1,a:1"),
        ("status", "7071"),
        ("security.allow_uids", "-1"),
        ("s3.b.endpoint_url", "ftp://x"),
        ("s3.b.role_arn", "role"),
        ("s3.b.addressing_style", "host"),
        ("s3.'b/c'.region", "x"),
    ],
)
def test_bad_values_are_refused(name: str, value: object) -> None:
    """A value of the wrong kind or out of bounds is one problem with the flag as origin."""
    with pytest.raises(ConfigProblems) as caught:
        load({name: (value, "flag --set")}, {})
    (problem,) = caught.value.problems
    assert "expected" in problem.expected or "should" in problem.expected, problem


def test_sizes_may_be_plain_numbers() -> None:
    """A number without unit is bytes, or seconds."""
    config = load({"cache.size": (2**30, "f"), "drain.grace": (1.5, "f"), "decode.workers": (3, "f")}, {}).config
    assert (config.cache.size, config.drain.grace, config.decode.workers) == (2**30, 1.5, 3)
    assert isinstance(config.cache.dir, Path)


def test_cores_are_written_as_the_kernel_writes_them() -> None:
    """Spans and single cores make one sorted set, shown the same way; naming none is the default."""
    first = min(usable_cpus())
    for text in (str(first), f"{first}-{first}", f" {first}, {first} ", first, [first]):
        config = load({"decode.cpus": (text, "f")}, {}).config
        assert config.decode.cpus == (first,)
        assert render(config)["decode.cpus"] == str(first)
        assert config.decode.workers_max == 1
    assert load({"decode.cpus": ("-", "f")}, {}).config.decode.cpus == ()
    assert format_cpus((20, 8, 9, 10)) == "8-10,20"


def test_a_core_that_is_not_there_names_those_that_are() -> None:
    """Who pins workers to cores of another machine is told which cores this one has."""
    with pytest.raises(ConfigProblems) as caught:
        load({"decode.cpus": ("100000-100001", "f")}, {})
    (problem,) = caught.value.problems
    assert problem.expected.endswith("expected cores like \"8-15,20\", got '100000-100001'")
    with pytest.raises(ConfigProblems) as caught:
        load({"decode.cpus": ("99999", "f")}, {})
    assert f"expected some of the cores {format_cpus(usable_cpus())}" in caught.value.problems[0].expected


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_cores_are_those_of_affinity_and_control_group(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota of the control group bounds the cores, of either version, rounded down and never to nothing."""
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.usable_cores() == cores


def test_workers_leave_a_core_to_each_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One core less per GPU, or one where there is none; no more than the memory bears; never none; pinned: all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1 << 40)
    assert machine.default_workers_max(()) == 95
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine.default_workers_max(()) == 93
    assert machine.default_workers_max(range(8, 16)) == 8
    monkeypatch.setattr(machine, "memory_bytes", lambda: 2 << 30)
    assert machine.default_workers_max(()) == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert machine.default_workers_max(()) == 1
    assert [machine.default_workers(most) for most in (1, 2, 7, 95, 184)] == [1, 2, 2, 13, 25]


@pytest.mark.parametrize(
    ("speeds", "cores", "parts"),
    [
        ({}, 2, 16),
        ({}, 96, 192),
        ({}, 384, 256),
        ({"eth0": "-1"}, 2, 16),
        ({"eth0": "10000"}, 96, 16),
        ({"eth0": "25000", "eth1": "100000"}, 96, 160),
        ({"eth0": "400000"}, 192, 256),
        ({"eth0": "not so fast"}, 4, 16),
    ],
)
def test_parts_in_flight_fill_the_network_card(
    speeds: dict[str, str], cores: int, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many connections of 80 MB/s as the fastest card that is up takes; by cores where none says; 16 to 256."""
    for name, speed in ({"lo": "400000"} | speeds).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed + "\n")
        (tmp_path / name / "operstate").write_text("up\n")
        if name != "lo":
            (tmp_path / name / "device").touch()
    monkeypatch.setattr(machine, "_INTERFACES", tmp_path)
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    assert machine.default_parts_in_flight() == parts


def test_bounds_of_fetching_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes in flight follow the parts, up to an eighth of the memory, unless said; threads follow the cores."""
    monkeypatch.setattr(machine, "memory_bytes", lambda: 64 << 30)
    by_parts = {parts: machine.default_bytes_in_flight(parts) for parts in (1, 16, 64, 256, 512, 4096)}
    assert by_parts == {1: 256 << 20, 16: 256 << 20, 64: 1 << 30, 256: 4 << 30, 512: 8 << 30, 4096: 8 << 30}
    monkeypatch.setattr(machine, "memory_bytes", lambda: 1 << 30)
    assert machine.default_bytes_in_flight(512) == 256 << 20
    fetch = load({"fetch.parts_in_flight": ("64", "f")}, {}).config.fetch
    assert fetch.bytes_in_flight == machine.default_bytes_in_flight(64)
    told = {"fetch.parts_in_flight": ("64", "f"), "fetch.bytes_in_flight": ("100MiB", "f")}
    assert load(told, {}).config.fetch.bytes_in_flight == 100 << 20
    threads = []
    for cores in (1, 2, 8, 16, 32, 96, 192):
        monkeypatch.setattr(machine, "usable_cores", lambda cores=cores: cores)
        threads.append(machine.default_transfer_threads())
    assert threads == [1, 2, 2, 2, 4, 12, 24]
