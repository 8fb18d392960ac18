"""Tables of text with more columns than a form's name can tell the types of."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest

from feedd.conversion import PARAMS_BYTES_MAX, Conversion, text_of
from feedd.errors import BadRecipe, Internal
from feedd.tables.columns import head_params, is_head, typed_by, typed_params
from feedd.tables.task import MakeTask
from feedd.workers.calls import make_call
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
        (text,) = {text_of(ref.conversion) for ref in session._parts.view.refs}
        assert len(text) < 64
        for entry in rig.cache.entries():
            assert len(entry.conversion) < PARAMS_BYTES_MAX


def test_long_parameters_have_a_digest_and_stay_whole() -> None:
    """Cache and catalog compare the digest; a worker is told all."""
    types = dict.fromkeys(NAMES, "double")
    params = typed_params([], types, delimiter=";")
    assert params == typed_params([], dict(reversed(types.items())), delimiter=";")
    assert typed_by(params).types == types
    assert not is_head(params)
    assert is_head(head_params(params))
    assert typed_by(head_params(params)).types == types
    conversion = Conversion("csv", params)
    assert len(params) > PARAMS_BYTES_MAX > 64 > len(conversion.text)
    request = msgspec.msgpack.decode(
        make_call(MakeTask(conversion, "s3://b/k", 1, (), -1, -1, 0, 1, 1)).packet(range(1), 1).payload
    )
    assert zlib.decompress(request[3]).decode() == params


def test_what_was_read_from_disk_is_the_same_and_cannot_be_made() -> None:
    """A digest does not tell what it stands for, and nothing is made by a guess at it."""
    params = typed_params([], dict.fromkeys(NAMES, "double"))
    for conversion in (Conversion("csv", params), Conversion("csv", "[]"), Conversion("gunzip")):
        found = Conversion.parse(conversion.text)
        assert (found, hash(found)) == (conversion, hash(conversion))
    other = Conversion("csv", params.replace("double", "string"))
    assert other != Conversion("csv", params)
    assert Conversion.parse("") is None
    found = Conversion.parse(other.text)
    assert found is not None
    with pytest.raises(Internal, match="expected names of columns"):
        typed_by(found.params)


def test_more_than_a_worker_can_be_told_is_an_error() -> None:
    """Not a guess: it says what to do."""
    names = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(2000)]
    with pytest.raises(BadRecipe) as caught:
        typed_params([], dict.fromkeys(names, "int64"))
    assert "name fewer columns" in caught.value.hint
