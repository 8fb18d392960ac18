"""What a stream says of data that is left out, where that is known only while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.notices import Amount, Notice, NoticeKind
from tests.fakes.backend import FakeScript
from tests.unit.serve.raw_client import serving

if TYPE_CHECKING:
    from pathlib import Path

QUIET = Notice(NoticeKind.SIDE_FILES, Amount(2, 20))


async def test_notices_that_grow_are_said_once_on_the_stream(short_dir: Path) -> None:
    """Those of Open are not said again; more are said in their place, once, and not by the next stream either."""
    script = FakeScript(steps=4, notices=(QUIET,))
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=4)
        assert [notice.kind for notice in opened.notices] == ["side-files"]
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        await stream.until(1)
        assert stream.notices == []
        late = Notice(NoticeKind.LATE_FIELDS, Amount(1, 0, ("txt",)))
        script.notices = (late, QUIET)
        await stream.send(credits=2)
        await stream.until(3)
        (told,) = stream.notices
        assert [(notice.kind, notice.count) for notice in told] == [("late-fields", 1), ("side-files", 2)]
        assert told[0].text == late.text
        stream.call.cancel()
        again = await rig.stream(opened.session_id, epoch=1, credits=1, inline_only=True)
        await again.until(1)
        assert again.notices == []
        again.call.cancel()
