"""The fault matrix is whole: every numbered case says what is asserted, and is a test of its own."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from tests.tidy.tree import sources

ASSERTED: Final = {
    1: "two SlowDown: exact bytes, two requests more, fewer parts in flight; Retry-After is waited for",
    2: "a minute of SlowDown: what the store hears is bounded by the quota, with a control; the deadline ends it",
    3: "500: asked again, and an error after as many attempts as configured",
    4: "200 with an error document: asked again, nothing of it kept",
    5: "an address that refuses, or drops what asks for a connection: another one, no retry",
    6: "a name that cannot be resolved: the last good addresses stay; one that never could is named",
    7: "an address that died: left, probed, and used again",
    8: "a reset in mid-body: the next byte on, each byte asked for once",
    9: "a clean close before Content-Length: never the end",
    10: "a stall: the second request goes on where the first stands, which is cancelled",
    11: "a drip: as a stall; the rate at which one begins is in unit/flow/test_hedge",
    12: "late first bytes: a second request each, within a share of bytes; how late is the bench's (fault table)",
    13: "206 of another range: refused before a byte counts",
    14: "200 for a range: likewise",
    15: "an answer without the headers that identify it: likewise",
    16: "an answer of another length: likewise",
    17: "a flipped bit: found by each algorithm, counted, and the least possible fetched again",
    18: "flipped for good: three fetches, then an error that names all there is to know; nothing cached",
    19: "replaced during the download: both ETags, no mix",
    20: "replaced between epochs: the old version or an error, on all nodes alike",
    21: "deleted: named, no retry, each part asked for once at most; left out when asked in unit/pipeline",
    22: "one range that is gone: named at once; one that stalls for good is in test_source_faults",
    23: "denied: final, on one key of many too",
    24: "expired credentials: looked up once, only those parts again",
    25: "a source of credentials that is down: those at hand until they end",
    26: "a clock off by 20 minutes: learned once, both ways",
    27: "another region: learned once",
    28: "416: both versions and sizes",
    29: "a listing that fails in the middle: each key once, in order",
    30: "odd keys, empty objects and one of a byte: exact",
    31: "a full disk: memory serves, and the disk again once it can",
    32: "a disk that takes no writes: the epoch goes on",
    33: "unreadable blocks: fetched again, a sick disk is left and comes back",
    34: "a disk that hangs: told from a slow store",
    35: "a flipped bit in the cache: a miss, counted, never served",
    36: "a file cut short: a miss",
    37: "swapped blocks or files: misses",
    38: "another version of the format: a miss, an older one removed",
    39: "kill -9 before any step of the cache: the next start is clean and exact",
    40: "power loss: no zeroed tail is served",
    41: "a lost index: nothing fetched twice",
    42: "a directory that goes in mid-fill: that acquire fails, the next one works",
    43: "two owners: the second one is refused",
    44: "evicted under a reader: read to its end",
    45: "a small tmpfs or control group: never overdrawn",
    46: "data a little larger than the cache: hits as large as the cache allows",
    47: "inodes exhausted: as a full disk",
    48: "a hundred readers of one cold object: one GET, whoever leaves",
    49: "a consumer that stops or gives up: no more made or held than slots and budget",
    50: "a budget smaller than a part: each byte asked for once",
    51: "cancelled at any turn, while connections open too: nothing leaks",
    52: "told to stop in mid-fill: whole files only; SIGTERM of a daemon is in e2e/test_daemon_life",
    53: "a wall clock that jumps: nothing waits for it; ruff bans it elsewhere (TID251)",
    54: "no descriptor left: parts take turns; none at all is named",
}
NOT_APPLICABLE: Final = {
    55: "a peer's cache that fails: there are no caches of peers",
    56: "a node that leaves a hash ring: the plan assigns shards; model/test_plan_model and e2e/test_elastic",
}
_NAME = re.compile(r"test_case_(\d\d)_\w+")


def _cases() -> dict[int, list[str]]:
    """Name the tests of each case."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for source in sources():
        if source.path.parts[:2] != ("tests", "fault"):
            continue
        for node in source.functions():
            match = _NAME.fullmatch(node.name)
            if match is not None:
                found[int(match[1])].append(f"{source.path}::{node.name}")
    return found


def test_the_matrix_is_whole() -> None:
    """Cases 1 to 56 are each either asserted or not applicable, and say so."""
    assert sorted([*ASSERTED, *NOT_APPLICABLE]) == list(range(1, 57))


def test_every_fault_case_has_its_test() -> None:
    """Each case that is asserted has at least one test under tests/fault, named by its number; others have none."""
    found = _cases()
    missing = [f"{number:02d}" for number in ASSERTED if not found[number]]
    assert not missing, f"no test_case_NN_ for {', '.join(missing)}"
    unknown = [name for number, names in found.items() if number not in ASSERTED for name in names]
    assert not unknown
