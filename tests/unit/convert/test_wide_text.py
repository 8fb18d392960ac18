"""Tables of text with more columns than a form's name can tell the types of."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from feedd.convert.columnar import head_params, is_head, typed_by, typed_params
from feedd.convert.conversion_registry import split
from feedd.convert.long_params import PARAMS_BYTES_MAX, _RecentTexts, for_worker, spelled
from feedd.errors import BadRecipe, Internal
from feedd.workers.convert_call import MakeCall
from feedd.workers.work import MakeTask
from tests.fakes.feeding import batches, feeding
from tests.unit.catalog.test_typed import bad, floats

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 1000
NAMES = ["c" + hashlib.sha256(str(n).encode()).hexdigest()[:12] for n in range(COUNT)]  # nothing repeats in them


@pytest.mark.slow
async def test_types_of_very_many_columns_are_the_first_shards(tmp_path: Path) -> None:
    """Half of them whole numbers, half not: the second shard's look like others, and are read as the first's."""
    async with feeding(tmp_path) as rig:
        for shard, halves in enumerate(("1,0.5", "2,3")):
            row = ",".join([halves] * (COUNT // 2))
            rig.store.put(f"train/{shard}.csv", f"{','.join(NAMES)}\n{row}\n".encode())
        session = await rig.open(fields=(), batch_size=2)
        made = await batches(session)
        assert (floats(made, NAMES[1], "float32"), bad(made)) == ([0.5, 3.0], 0)
        assert made[0].ints(NAMES[COUNT - 2]) == [1, 2]
        specs = {spec.name: spec.dtype for spec in made[0].specs}
        assert [specs[name] for name in NAMES] == ["int64", "float32"] * (COUNT // 2)
        (form,) = {ref.conversion for ref in session._parts.listing.refs}
        assert len(form) < 64
        for entry in rig.cache.entries():
            assert len(entry.conversion) < PARAMS_BYTES_MAX


def test_long_parameters_stand_for_what_they_were() -> None:
    """By a digest here, in full for a worker; of the same columns it is the same."""
    types = dict.fromkeys(NAMES, "double")
    params = typed_params([], types, delimiter=";")
    assert params == typed_params([], dict(reversed(types.items())), delimiter=";")
    assert typed_by(params).types == types
    told = for_worker(f"csv:{params}")
    assert len(told) > len(params)
    assert spelled(split(told)[1]) == spelled(params)
    assert typed_by(split(told)[1]).types == types
    assert not is_head(params)
    assert is_head(head_params(params))
    assert typed_by(head_params(params)).types == types
    assert for_worker("csv:rows") == "csv:rows"
    task = MakeTask(f"csv:{params}", "s3://b/k", 1, (), -1, -1, 0, 1, 1, 1)
    assert told.encode() in MakeCall(task).packet(range(1), 1)


def test_more_than_a_worker_can_be_told_is_an_error() -> None:
    """Not a guess: it says what to do."""
    names = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(2000)]
    with pytest.raises(BadRecipe) as caught:
        typed_params([], dict.fromkeys(names, "int64"))
    assert "name fewer columns" in caught.value.hint


def test_a_digest_that_nobody_keeps_is_an_error() -> None:
    """Nothing is made by a guess at what it stood for."""
    with pytest.raises(Internal, match="known"):
        spelled("#00")


def test_what_was_kept_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts take no more than their room; the one that was used longest ago goes first."""
    monkeypatch.setattr("feedd.convert.long_params._KEPT_BYTES_MAX", 10)
    kept = _RecentTexts()
    kept.keep("#a", "12345")
    kept.keep("#b", "12345")
    kept.keep("#a", "12345")
    kept.keep("#c", "12345")
    assert [kept.find(name) for name in ("#a", "#b", "#c")] == ["12345", None, "12345"]
