"""Windows are sorted once on a node, whatever number of ranks reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.ordering.epoch import EpochMap
from feedd.values import Cursor
from tests.fakes.feeding import batches, feeding, rank

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.ordering.sorted_windows import WindowRows

_COUNTS = (8, 8, 8, 8, 8, 8)
_WINDOWS = 3  # of two shards


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The windows that were sorted, one after another."""
    found: list[int] = []
    sort = EpochMap.samples

    def noted(self: EpochMap, window: int) -> WindowRows:
        found.append(window)
        return sort(self, window)

    monkeypatch.setattr(EpochMap, "samples", noted)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
async def test_ranks_of_a_node_sort_together(tmp_path: Path, sorts: list[int], ranks: int) -> None:
    """However many ranks read an epoch, each of its windows is sorted once, and the memory is that of one rank."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*_COUNTS)
        await batches(await rig.open(batch_size=1, shuffle=True))  # counts of all shards are known now
        await rig.close(rig.sessions[0])
        assert rig.pipeline.windows.plan_count == 0
        sorts.clear()
        sessions = [await rig.open(batch_size=1, shuffle=True, topology=rank(at, ranks)) for at in range(ranks)]
        read = [value for one in sessions for batch in await batches(one) for value in batch.ints()]
        assert sorted(read) == sorted(shard * 100 + n for shard, count in enumerate(_COUNTS) for n in range(count))
        assert set(sorts) == set(range(_WINDOWS))
        assert len(sorts) <= _WINDOWS + 1  # the next epoch's first may have been, for what is decoded ahead
        assert rig.pipeline.windows.plan_count == 1
        assert rig.pipeline.windows.cached_bytes <= (_WINDOWS + 1) * 16 * 16


async def test_plans_that_differ_share_nothing(tmp_path: Path) -> None:
    """Another seed, window, sharding, node or order of the data has windows of its own; another batch size has not."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*_COUNTS)
        first = await rig.open(shuffle=True)
        await rig.open(shuffle=True, batch_size=2)
        await rig.open(shuffle=True, keys=True)
        assert rig.pipeline.windows.plan_count == 1
        others: list[dict[str, object]] = [{"seed": 1}, {"window_shards": 3}, {"sharding": "size"}, {"partitions": 2}]
        others.append({"shuffle": False})
        for count, changes in enumerate(others, 2):
            asked: dict[str, object] = {"shuffle": True, **changes}
            await rig.open(**asked)
            assert rig.pipeline.windows.plan_count == count
        await rig.close(first)
        assert rig.pipeline.windows.plan_count == 6


async def test_a_rank_that_closes_leaves_the_others_theirs(tmp_path: Path) -> None:
    """The windows stay as long as one rank reads them, and go with the last."""
    async with feeding(tmp_path) as rig:
        rig.store.numbers(*_COUNTS)
        one, other = [await rig.open(shuffle=True, topology=rank(at, 2)) for at in range(2)]
        assert len(await batches(one, Cursor(0))) > 0
        held = rig.pipeline.windows.cached_bytes
        assert held > 0
        await rig.close(one)
        assert rig.pipeline.windows.cached_bytes == held
        await rig.close(other)
        assert rig.pipeline.windows.cached_bytes == 0
