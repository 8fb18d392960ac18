"""Numbers of 64 bits: float32 by default, which is said; all of their bits where asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from structlog.testing import capture_logs

from feedd.errors import BadRequest
from tests.fakes.feeding import Taken, batches, feeding
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feeding import Feeding

STAMPS = [1_700_000_000.123456 + n for n in range(6)]


def columns(rig: Feeding, name: str) -> tuple[str, ...]:
    """Store a column that float32 cannot hold, and return where."""
    samples = [{"cls": np.int64(n).tobytes(), "at": np.float64(at).tobytes()} for n, at in enumerate(STAMPS)]
    rig.store.put(f"{name}/00.mds", mds({"cls": "int", "at": "float64"}, samples))
    return (f"s3://memory/{name}/",)


def floats(batch: Taken, name: str) -> tuple[str, list[float]]:
    """Return a field's dtype and values."""
    at = next(n for n, spec in enumerate(batch.specs) if spec.name == name)
    dtype, region = batch.specs[at].dtype, batch.ready.regions[at]
    return dtype, np.frombuffer(batch.data, dtype, batch.ready.rows, region.values_at).tolist()


async def test_what_nobody_named_is_float32_and_said_once(tmp_path: Path) -> None:
    """With the field and what to write instead; whoever names fields is told nothing."""
    async with feeding(tmp_path) as rig:
        urls = columns(rig, tmp_path.name)
        with capture_logs() as logs:
            (batch,) = await batches(await rig.open(urls=urls, fields=(), batch_size=6))
            await rig.open(urls=urls, fields=(), batch_size=3)
            await rig.open(urls=columns(rig, f"{tmp_path.name}-named"), fields=(("at", "float"),))
        assert floats(batch, "at") == ("float32", np.array(STAMPS, np.float32).tolist())
        said = [one for one in logs if one.get("kind") == "narrowed-numbers"]
        assert [(one["count"], one["urls"], one["log_level"]) for one in said] == [(1, list(urls), "warning")]
        assert "(at)" in said[0]["text"]
        assert "float:float64" in said[0]["text"]


async def test_all_bits_where_asked(tmp_path: Path) -> None:
    """Of stored numbers, of text and inside JSON, with and without transforms."""
    async with feeding(tmp_path) as rig:
        urls = columns(rig, "w")
        cast = json.dumps({"decode": "float", "dtype": "float64", "transforms": [{"op": "cast", "dtype": "int64"}]})
        (batch,) = await batches(await rig.open(urls=urls, fields=(("at", "float:float64"),), batch_size=6))
        assert floats(batch, "at") == ("float64", STAMPS)
        (batch,) = await batches(await rig.open(urls=urls, fields=(("at", cast),), batch_size=6))
        assert floats(batch, "at")[1] == [round(at) for at in STAMPS]
        texts = [*(repr(at) for at in STAMPS), "1e300", "1e400"]
        rig.store.shard(0, [{"score": at.encode(), "json": f'{{"at": {at}}}'.encode()} for at in texts])
        inside = json.dumps({"decode": "float", "dtype": "float64", "from": "json", "key": "at"})
        fields = (("score", "float:float64"), ("at", inside), ("less", '{"decode": "float", "from": "score"}'))
        (batch,) = await batches(await rig.open(fields=fields, batch_size=8))
        assert floats(batch, "score") == floats(batch, "at") == ("float64", [*STAMPS, 1e300, float("inf")])
        assert floats(batch, "less")[1][-2:] == [float("inf")] * 2
        with pytest.raises(BadRequest, match="float16"):
            await rig.open(fields=(("score", "float:float16"),))
