"""A lane's part of the node: cores, memory, cache, addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.cache.lock import DirectoryLock
from feedd.config import Config, ConfigProblems, load
from feedd.config.machine_cores import cores_by_memory_node, lanes_for, parse_cores, split_cores
from feedd.lanes.lane import Lane, lane_config, remove_other_lanes
from feedd.units import MIB

if TYPE_CHECKING:
    from pathlib import Path


def _machine(root: Path, nodes: list[str], siblings: dict[int, str]) -> Path:
    """Write the kernel's files of a machine with these memory nodes."""
    for number, cores in enumerate(nodes):
        folder = root / f"node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for core, text in siblings.items():
        folder = root / f"cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    return root


def test_cores_of_a_memory_node_stay_together(tmp_path: Path) -> None:
    """Both threads of a core are neighbours, and cores that the process may not use are left out."""
    siblings = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    root = _machine(tmp_path, ["0-1,4-5", "2-3,6-7"], siblings)
    groups = cores_by_memory_node(frozenset(range(8)), root)
    assert groups == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert split_cores(groups, 4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    assert cores_by_memory_node(frozenset({1, 5, 7}), root) == [[1, 5], [7]]


def test_memory_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """The tenth comes after the second: neighbours by number are neighbours on the board."""
    root = _machine(tmp_path, [str(core) for core in range(12)], {})
    assert cores_by_memory_node(frozenset(range(12)), root) == [[core] for core in range(12)]


def test_a_machine_without_memory_nodes_is_one_group(tmp_path: Path) -> None:
    """As in some containers."""
    assert cores_by_memory_node(frozenset({3, 1, 2}), tmp_path) == [[1, 2, 3]]
    assert parse_cores("0-2,7\n") == {0, 1, 2, 7}
    assert parse_cores("") == frozenset()


def test_every_core_is_in_one_lane() -> None:
    """Parts are as equal as possible; with more lanes than cores, lanes share."""
    parts = split_cores([list(range(10))], 3)
    assert [len(part) for part in parts] == [3, 3, 4]
    assert frozenset().union(*parts) == set(range(10))
    assert split_cores([[5, 9]], 4) == [{5}, {9}, {5}, {9}]
    assert split_cores([[5, 9]], 2) == [{5}, {9}]


@pytest.mark.parametrize(
    ("nodes", "gpus", "lanes"),
    [
        ([2], 0, 1),
        ([16], 1, 1),
        ([31], 8, 1),
        ([32], 0, 2),
        ([48], 0, 3),
        ([48], 8, 2),
        ([96], 8, 4),
        ([48, 48], 8, 4),
        ([96, 96], 8, 8),
        ([48, 48], 0, 6),
        ([24, 24, 24, 24], 0, 4),
        ([40, 40], 0, 4),  # five lanes of 16 cores would lie on both memory nodes
    ],
)
def test_automatic_lanes(nodes: list[int], gpus: int, lanes: int) -> None:
    """At least 16 cores a lane, as many GPUs in each, and no lane on two memory nodes."""
    assert lanes_for([list(range(size)) for size in nodes], gpus, sum(nodes)) == lanes


def test_a_limit_of_cpu_time_makes_fewer_lanes() -> None:
    """A container with the time of 32 of 96 cores has two lanes, though it may run on all cores."""
    nodes = [list(range(48)), list(range(48, 96))]
    assert lanes_for(nodes, 0, 32) == 2
    assert lanes_for(nodes, 0, 31) == 1


def test_amounts_are_those_of_the_node() -> None:
    """All lanes together have what the node may use; what is no amount stays."""
    node = load(
        {
            "lanes": (4, "test"),
            "cache.dir": ("/tmp/cache", "test"),
            "cache.size": ("8GiB", "test"),
            "cache.quotas": ({"s3://b/": "4GiB"}, "test"),
            "arena.size": ("2GiB", "test"),
            "fetch.parts_in_flight": (64, "test"),
            "fetch.transfer_threads": (2, "test"),
            "decode.workers_max": (8, "test"),
            "listen": (["unix:///tmp/a.sock", "127.0.0.1:7070"], "test"),
            "quarantine.path": ("/tmp/bad.jsonl", "test"),
            "quarantine.size": ("8MiB", "test"),
            "limits.arena_per_owner": ("1GiB", "test"),
            "fetch.bytes_in_flight": ("1GiB", "test"),
            "cache.bypass": ("512MiB", "test"),
            "security.admin_socket": ("/tmp/admin.sock", "test"),
        },
        {},
    ).config
    lanes = [lane_config(node, Lane(index, 4)) for index in range(4)]
    assert {lane.cache.size for lane in lanes} == {2 << 30}
    assert {lane.cache.quotas["s3://b/"] for lane in lanes} == {1 << 30}
    assert {lane.arena.size for lane in lanes} == {512 << 20}
    assert {lane.fetch.parts_in_flight for lane in lanes} == {16}
    assert {lane.quarantine.size for lane in lanes} == {2 << 20}
    assert {lane.limits.arena_per_owner for lane in lanes} == {256 << 20}
    assert {lane.fetch.bytes_in_flight for lane in lanes} == {256 << 20}
    assert {lane.cache.bypass for lane in lanes} == {128 << 20}
    assert {lane.fetch.transfer_threads for lane in lanes} == {1}
    assert {lane.decode.workers_max for lane in lanes} == {2}
    assert {lane.decode.workers for lane in lanes} == {"auto"}
    assert {lane.fetch.attempts for lane in lanes} == {node.fetch.attempts}
    assert lanes[0].listen == node.listen
    assert lanes[2].listen == ["unix:///tmp/a.sock.lane2", "127.0.0.1:7270"]
    assert [str(lane.cache.dir) for lane in lanes] == ["/tmp/cache", *(f"/tmp/cache/lanes/{n}" for n in (1, 2, 3))]
    assert len({lane.quarantine.path for lane in lanes}) == 4
    assert lanes[0].quarantine.path == node.quarantine.path
    assert lanes[0].security.admin_socket == node.security.admin_socket
    assert len({lane.security.admin_socket for lane in lanes}) == 4
    assert all(lane.status is None for lane in lanes)


def test_cores_of_workers_are_shared() -> None:
    """Each of them belongs to one lane."""
    node = Config.model_validate({"lanes": 2})
    node = node.model_copy(update={"decode": node.decode.model_copy(update={"cpus": tuple(range(900, 908))})})
    first, second = (set(lane_config(node, Lane(index, 2)).decode.cpus) for index in range(2))
    assert (len(first), len(second)) == (4, 4)
    assert first | second == set(range(900, 908))


def test_a_part_is_never_below_the_minimum() -> None:
    """Each lane's configuration is one that a user might write; 0 means none, and stays."""
    small = {
        "lanes": 4,
        "cache": {"size": "1MiB", "bypass": 0},
        "fetch": {"parts_in_flight": 1, "bytes_in_flight": "1MiB", "transfer_threads": 1},
        "decode": {"workers": 1, "workers_max": 1},
        "arena": {"size": "1MiB"},
        "quarantine": {"size": "64KiB"},
    }
    lane = lane_config(Config.model_validate(small), Lane(2, 4))
    again = Config.model_validate(lane.model_dump() | {"status": "off"})
    assert (again.cache.size, again.cache.bypass) == (MIB, 0)
    assert again.limits.arena_per_owner == 0


def test_a_fixed_number_of_workers_is_shared() -> None:
    """Every lane has at least one."""
    node = Config.model_validate({"lanes": 4, "decode": {"workers": 6}})
    assert lane_config(node, Lane(3, 4)).decode.workers == 1
    assert lane_config(node, Lane(0, 2)).decode.workers == 3


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.1:65500", "unix:///tmp/" + "x" * 94])
def test_lanes_need_room_for_their_addresses(listen: str) -> None:
    """Port 0 has no next port, and a long path has no room for the suffix."""
    load({"listen": ([listen], "test")}, {})
    with pytest.raises(ConfigProblems):
        load({"listen": ([listen], "test"), "lanes": (2, "test")}, {})


@pytest.mark.parametrize(
    ("listen", "status"),
    [
        (["127.0.0.1:7070", "127.0.0.1:7170"], "off"),
        (["127.0.0.1:7070"], "127.0.0.1:7270"),
        (["unix:///tmp/a", "unix:///tmp/a.lane2"], "off"),
    ],
)
def test_lanes_have_addresses_of_their_own(listen: list[str], status: str) -> None:
    """A lane's address may be that of another lane, or of the status page: the start would fail with half of them."""
    settings = {"listen": (listen, "test"), "status": (status, "test")}
    load(settings, {})
    with pytest.raises(ConfigProblems, match="expected an address for lane"):
        load({**settings, "lanes": (3, "test")}, {})


@pytest.mark.parametrize("lanes", [0, 65, "many", True])
def test_lanes_are_a_number_or_auto(lanes: object) -> None:
    """Anything else is a problem that names both."""
    with pytest.raises(ConfigProblems, match="auto or 1 to 64"):
        load({"lanes": (lanes, "test")}, {})


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/2", "a/b"])
def test_a_lane_is_a_number_below_the_count(text: str) -> None:
    """The supervisor writes it, so anything else is an error of ours."""
    assert Lane.parse("2/4") == Lane(2, 4)
    with pytest.raises(ValueError, match="lane"):
        Lane.parse(text)


def test_caches_of_lanes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """Lanes that are left keep theirs, a directory in use stays, and so does what is no lane's."""
    for name in ("1", "2", "3", "other"):
        (tmp_path / "lanes" / name).mkdir(parents=True, mode=0o700)
        (tmp_path / "lanes" / name / "entry").write_text("x")
    with DirectoryLock(tmp_path / "lanes" / "3"):
        remove_other_lanes(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "lanes").iterdir()) == ["1", "3", "other"]
    remove_other_lanes(tmp_path / "nothing here", 1)
