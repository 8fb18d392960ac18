"""Limits of control groups: each layout of both versions, and a real group where one can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.flow import memory
from feedd.flow.memory import available_bytes, cpu_limit, memory_left_bytes, memory_limit_bytes, oom_kills
from tests.fakes.memory_group import memory_group

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MIB = 1 << 20
_V2 = "31 23 0:28 {top} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
_V1 = "35 31 0:32 {top} {point} rw,relatime - cgroup cgroup rw,{controllers}"
_NO_LIMIT_V1 = "9223372036854771712"
_OWN = "sys/fs/cgroup"


def _tree(root: Path, cgroup: str, mounts: list[str], files: Mapping[str, str]) -> Path:
    """Make a root whose ``proc`` and ``sys`` say this."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def _v2(top: str = "/", point: str = "/sys/fs/cgroup") -> str:
    return _V2.format(top=top, point=point)


def _v1(controllers: str, top: str = "/", point: str = "") -> str:
    return _V1.format(top=top, point=point or f"/sys/fs/cgroup/{controllers}", controllers=controllers)


_SLURM = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
_LAYOUTS: dict[str, tuple[str, list[str], dict[str, str], int | None]] = {
    "no limit": ("0::/a\n", [_v2()], {f"{_OWN}/a/memory.max": "max", f"{_OWN}/a/memory.high": "max"}, None),
    "a container with a namespace": ("0::/\n", [_v2()], {f"{_OWN}/memory.max": str(400 * MIB)}, 400),
    "a unit of systemd": (
        "0::/system.slice/feedd.service\n",
        [_v2()],
        {
            f"{_OWN}/system.slice/memory.max": "max",
            f"{_OWN}/system.slice/feedd.service/memory.max": str(750 * MIB),
            f"{_OWN}/system.slice/feedd.service/memory.high": str(600 * MIB),
        },
        600,
    ),
    "a job of Slurm, limited above": (
        f"0::/{_SLURM}\n",
        [_v2()],
        {
            f"{_OWN}/{_SLURM}/memory.max": "max",
            f"{_OWN}/system.slice/slurmstepd.scope/job_7/memory.max": str(300 * MIB),
            f"{_OWN}/system.slice/memory.max": str(900 * MIB),
        },
        300,
    ),
    "the lowest is the own one": (
        "0::/a/b\n",
        [_v2()],
        {f"{_OWN}/a/memory.max": str(900 * MIB), f"{_OWN}/a/b/memory.max": str(200 * MIB)},
        200,
    ),
    "a neighbour's limit": (
        "0::/a/b\n",
        [_v2()],
        {f"{_OWN}/a/c/memory.max": str(MIB), f"{_OWN}/a/b/memory.max": "max"},
        None,
    ),
    "Slurm on version 1": (
        "5:memory:/slurm/uid_1/job_7/step_0\n4:cpu,cpuacct:/\n",
        [_v1("memory"), _v1("cpu,cpuacct")],
        {
            f"{_OWN}/memory/memory.limit_in_bytes": _NO_LIMIT_V1,
            f"{_OWN}/memory/slurm/uid_1/job_7/memory.limit_in_bytes": str(350 * MIB),
            f"{_OWN}/memory/slurm/uid_1/job_7/step_0/memory.limit_in_bytes": _NO_LIMIT_V1,
        },
        350,
    ),
    "docker on version 1": (
        "5:memory:/docker/abc\n",
        [_v1("memory", top="/docker/abc")],
        {f"{_OWN}/memory/memory.limit_in_bytes": str(123 * MIB)},
        123,
    ),
    "docker on version 1, below a limit that it hides": (
        "5:memory:/docker/abc\n",
        [_v1("memory", top="/docker/abc")],
        {
            f"{_OWN}/memory/memory.limit_in_bytes": _NO_LIMIT_V1,
            f"{_OWN}/memory/memory.stat": f"hierarchical_memory_limit {77 * MIB}",
        },
        77,
    ),
    "both versions, memory on the first": (
        "5:memory:/job\n0::/job\n",
        [_v2(point="/sys/fs/cgroup/unified"), _v1("memory")],
        {
            f"{_OWN}/memory/job/memory.limit_in_bytes": str(55 * MIB),
            f"{_OWN}/unified/job/cgroup.procs": "1",
        },
        55,
    ),
    "both versions, memory on the second": (
        "5:name=systemd:/job\n4:cpu:/\n0::/job\n",
        [_v2(point="/sys/fs/cgroup/unified"), _v1("cpu")],
        {f"{_OWN}/unified/job/memory.max": str(66 * MIB)},
        66,
    ),
    "a process outside of its namespace": ("0::/../other\n", [_v2()], {f"{_OWN}/memory.max": str(88 * MIB)}, 88),
    "a mount older than the namespace": (
        "0::/\n",
        [_v2(top="/../..")],
        {
            f"{_OWN}/memory.max": "max",
            f"{_OWN}/a/memory.max": str(500 * MIB),
            f"{_OWN}/a/b/memory.max": str(99 * MIB),
            f"{_OWN}/a/b/cgroup.procs": str(os.getpid()),
            f"{_OWN}/a/c/memory.max": str(MIB),
            f"{_OWN}/a/c/cgroup.procs": "1",
        },
        99,
    ),
    "a mount older than the namespace, where nothing is found": (
        "0::/\n",
        [_v2(top="/..")],
        {f"{_OWN}/memory.max": str(111 * MIB), f"{_OWN}/c/memory.max": str(MIB)},
        111,
    ),
    "a second mount of another part": (
        "0::/a\n",
        [_v2(), _v2(top="/other", point="/mnt/other")],
        {f"{_OWN}/a/memory.max": str(44 * MIB), "mnt/other/memory.max": str(MIB)},
        44,
    ),
    "a mount point with a space": (
        "0::/a\n",
        [_v2(point="/mnt/control\\040groups")],
        {"mnt/control groups/a/memory.max": str(33 * MIB)},
        33,
    ),
    "a group that is gone": ("0::/a/b\n", [_v2()], {f"{_OWN}/a/memory.max": str(22 * MIB)}, 22),
    "no table of mounts": ("0::/a\n", [], {f"{_OWN}/memory.max": str(11 * MIB)}, 11),
    "no table of mounts, version 1": ("", [], {f"{_OWN}/memory/memory.limit_in_bytes": str(12 * MIB)}, 12),
    "nonsense": ("what\n:\n\n0::\n", ["what", " - ", "1 2 3 4 5 - cgroup2"], {f"{_OWN}/memory.max": "what"}, None),
}


@pytest.mark.parametrize("name", _LAYOUTS)
def test_the_lowest_limit_counts_wherever_it_is(name: str, tmp_path: Path) -> None:
    """The limit is the lowest of the own group and all groups above, in each layout of either version."""
    cgroup, mounts, files, expected = _LAYOUTS[name]
    root = _tree(tmp_path, cgroup, mounts, files)
    assert memory_limit_bytes(root) == (None if expected is None else expected * MIB)


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "cores"),
    [
        ("0::/a/b\n", [_v2()], {f"{_OWN}/a/cpu.max": "150000 100000", f"{_OWN}/a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a\n", [_v2()], {f"{_OWN}/a/cpu.max": "max 100000"}, None),
        ("0::/a\n", [_v2()], {f"{_OWN}/a/cpu.max": "what"}, None),
        (
            "3:cpu,cpuacct:/job/step\n",
            [_v1("cpu,cpuacct")],
            {
                f"{_OWN}/cpu,cpuacct/job/cpu.cfs_quota_us": "300000",
                f"{_OWN}/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
                f"{_OWN}/cpu,cpuacct/job/step/cpu.cfs_quota_us": "-1",
                f"{_OWN}/cpu,cpuacct/job/step/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
    ],
)
def test_the_lowest_quota_counts(
    cgroup: str, mounts: list[str], files: dict[str, str], cores: float | None, tmp_path: Path
) -> None:
    """A quota of CPU time counts wherever it is in the tree."""
    assert cpu_limit(_tree(tmp_path, cgroup, mounts, files)) == cores


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_left_depends_on_what_is_used(version: int, tmp_path: Path) -> None:
    """Memory in use counts in each group; file pages count as free; memory of other processes lowers the limit."""
    folder, names = {
        1: (f"{_OWN}/memory/a", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_rss", "total_inactive_file")),
        2: (f"{_OWN}/a", ("memory.max", "memory.current", "anon", "inactive_file")),
    }[version]
    limit, usage, anon, file = names
    cgroup, mount = ("5:memory:/a/b\n", _v1("memory")) if version == 1 else ("0::/a/b\n", _v2())
    own = "inactive_file 1\ninactive_anon 9\n" if version == 1 else ""
    root = _tree(
        tmp_path,
        cgroup,
        [mount],
        {
            f"{folder}/{limit}": str(1000 * MIB),
            f"{folder}/{usage}": str(900 * MIB),
            f"{folder}/memory.stat": f"{own}{anon} {600 * MIB}\n{file} {50 * MIB}\nfoo bar\n",
            f"{folder}/b/{limit}": str(2000 * MIB),
            f"{folder}/b/{usage}": str(100 * MIB),
            "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000000 kB\n",
            "proc/self/status": f"Name: x\nRssAnon:\t  {100 * 1024} kB\n",
        },
    )
    assert memory_left_bytes(root) == available_bytes(root) == 150 * MIB
    assert memory_limit_bytes(root) == 500 * MIB
    (root / folder / usage).write_text(str(1100 * MIB))
    assert memory_left_bytes(root) == 0


def test_kills_are_counted(tmp_path: Path) -> None:
    """The number of processes that the kernel killed is that of the own group, in either version."""
    events = {f"{_OWN}/a/memory.events": "low 0\noom 4\noom_kill 3", f"{_OWN}/memory.events": "oom_kill 9"}
    assert oom_kills(_tree(tmp_path / "2", "0::/a\n", [_v2()], events)) == 3
    control = {f"{_OWN}/memory/a/memory.oom_control": "under_oom 0\noom_kill 2"}
    assert oom_kills(_tree(tmp_path / "1", "5:memory:/a\n", [_v1("memory")], control)) == 2
    assert oom_kills(tmp_path / "none") == 0


@pytest.mark.parametrize("hidden", ["group", "tree"])
def test_what_cannot_be_looked_at_is_no_limit(hidden: str, tmp_path: Path) -> None:
    """Groups that the system does not let this process look at limit nothing, and reading them raises nothing."""
    root, name = tmp_path, "x" * 300  # the error for this name is none of those that mean "not there"
    if hidden == "group":
        _tree(root, f"0::/{name}\n", [_v2()], {f"{_OWN}/memory.max": str(500 * MIB)})
        assert memory_limit_bytes(root) == 500 * MIB, "the group above can be looked at"
    else:
        root /= name
        assert memory_limit_bytes(root) is None
    assert cpu_limit(root) is None
    assert oom_kills(root) == 0
    memory_left_bytes(root)
    available_bytes(root)


@given(st.text(), st.text(), st.text())
def test_any_texts_are_read(cgroup: str, mounts: str, number: str) -> None:
    """Whatever the kernel's tables say, reading them raises nothing."""
    texts = {"cgroup": cgroup, "mountinfo": mounts, "memory.max": number, "cpu.max": number, "memory.stat": number}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_text", lambda path: texts.get(path.name, ""))
        memory._limits.cache_clear()
        assert memory_limit_bytes() is None or memory_limit_bytes() == 0 or number.strip().isdecimal()
        cpu_limit()
        oom_kills()
    memory._limits.cache_clear()


@pytest.mark.slow  # a process
def test_a_real_group() -> None:
    """A process in a group below a limited one sees the limit, and what is left of it."""
    code = (
        "import sys; from pathlib import Path; Path(sys.argv[1], 'cgroup.procs').write_text('0')\n"
        "from feedd.flow.memory import memory_left_bytes, memory_limit_bytes\n"
        "from feedd.config.machine_defaults import default_arena_bytes, memory_bytes\n"
        "print(memory_limit_bytes(), memory_left_bytes(), memory_bytes(), default_arena_bytes())"
    )
    with memory_group(400 * MIB) as group:
        command = [sys.executable, "-c", code, str(group)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    limit, left, memory, arena = map(int, done.stdout.split())
    assert 390 * MIB < limit <= 400 * MIB
    assert 0 < left < 400 * MIB
    assert 390 * MIB < memory <= 400 * MIB
    assert arena <= 100 * MIB
