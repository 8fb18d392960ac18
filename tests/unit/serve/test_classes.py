"""Names of classes, asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from feedd.wire import feedd_pb2 as pb
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import error_of, serving

if TYPE_CHECKING:
    from pathlib import Path


async def test_classes_are_named_in_order(short_dir: Path) -> None:
    """However many there are, in order; names that are no UTF-8 are said as well as they can be."""
    names = (*(f"n{number:08d}" for number in range(1000)), "k\udcff")
    async with serving(short_dir, FakeScript(classes={"cls": names})) as rig:
        opened = await rig.open()
        parts = [part async for part in rig.feed.Classes(pb.ClassesRequest(session_id=opened.session_id, field="cls"))]
        got = [name for part in parts for name in part.names]
        assert got[:-1] == list(names[:-1])
        assert got[-1].startswith("k")
        assert len(parts) > 1


@pytest.mark.parametrize(("session", "kind"), [(True, "bad-request"), (False, "not-found")])
async def test_classes_of_what_has_none(short_dir: Path, session: bool, kind: str) -> None:
    """A field without names, or a session that is not there, is an error that says so."""
    async with serving(short_dir, FakeScript(classes={"cls": ("a",)})) as rig:
        opened = await rig.open()
        request = pb.ClassesRequest(session_id=opened.session_id if session else "x", field="image")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.feed.Classes(request).read()
        error = error_of(failure.value)
        assert error.kind == kind
        assert ("cls" in error.message) == session
