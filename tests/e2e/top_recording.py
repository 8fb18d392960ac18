"""Records five minutes of ``feedd top`` beside a job that meets one trouble after another, for the documents.

``python -m tests.e2e.top_recording`` writes docs/images/top.cast (asciicast v2): the lines that changed, every 4 s.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from feedd.cli.top import ScreenState, draw
from feedd.diagnosis.node import NodeReader
from feedd.lanes.node_client import node_at
from feedd.view.node_model import NodeModel
from feedd_client import FeedDataset, Topology
from tests.budget import PATIENT_S
from tests.e2e.daemon import Daemon
from tests.e2e.shards import jpeg, tar
from tests.fakes.s3.faults import late
from tests.fakes.s3.server import S3Server
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from rich.text import Text

SECONDS: Final = 300
FRAME_S: Final = 4
SIZE: Final = (90, 24)
RANKS, SHARDS, SAMPLES, BATCH_SIZE, STEPS = 4, 48, 64, 16, 120
STORE_IS_FAST_S, STRAGGLES_S, HURRIES_S, CALM_S = 70, 150, 210, 255
TARGET: Final = ROOT / "docs" / "images" / "top.cast"


@dataclass
class _Story:
    """What the trainers do at each moment."""

    began_s: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)

    def step_s(self, rank: int) -> float:
        """Return how long a step of a rank takes now."""
        at_s = time.monotonic() - self.began_s
        if HURRIES_S <= at_s < CALM_S:
            return 0.09
        return 1.2 if rank == 2 and STRAGGLES_S <= at_s < HURRIES_S else 0.4


def _train(story: _Story, address: str, rank: int) -> None:
    dataset = FeedDataset(
        "s3://imagenet/train/",
        batch_size=BATCH_SIZE,
        fields={"jpg": "image:224x224:random", "cls": "int"},
        topology=Topology(world_size=RANKS, rank=rank, local_world_size=RANKS, local_rank=rank),
        steps=STEPS,
        bad_samples="replace",
        address=address,
        prefetch=3,
    )
    epoch = 0
    while not story.over.is_set():
        dataset.set_epoch(epoch)
        epoch += 1
        for _ in dataset:
            time.sleep(story.step_s(rank))
            if story.over.is_set():
                break
    dataset.close()


def _data(server: S3Server) -> None:
    images = [jpeg(number, 375, 500) for number in range(16)]
    for shard in range(SHARDS):
        samples = [
            (f"n{shard:04}_{number:03}", {"jpg": images[(shard + number) % 16] + bytes(20_000), "cls": b"%d" % number})
            for number in range(SAMPLES)
        ]
        if shard % 12 == 5:
            samples[9] = (f"n{shard:04}_009", {"jpg": images[0][:4000], "cls": b"9"})
        server.put("imagenet", f"train/shard-{shard:05}.tar", tar(samples))


class _Cast:
    """The recording: each frame has the lines that differ from the frame before."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=SIZE[0])
        self._before: list[str] = []
        self.lines = [json.dumps({"version": 2, "width": SIZE[0], "height": SIZE[1], "title": "feedd top"})]

    def add(self, at_s: float, frame: list[Text]) -> None:
        """Append a frame."""
        now = [self._rendered(line) for line in frame]
        changed = [
            f"\x1b[{number + 1};1H{line}\x1b[K"
            for number, line in enumerate(now)
            if number >= len(self._before) or line != self._before[number]
        ]
        self._before = now
        self.lines.append(json.dumps([round(at_s, 1), "o", "".join(changed)], ensure_ascii=False))

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", no_wrap=True, overflow="crop")
        return capture.get()


async def _record(address: str, server: S3Server, story: _Story) -> _Cast:
    cast, model, state = _Cast(), NodeModel(), ScreenState()
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(node_at(address))
        reader = NodeReader([one.observe for one in node.daemons], local=True)
        for second in range(SECONDS + 1):
            view = model.add(await reader.look())
            if second % FRAME_S == 0:
                cast.add(second, draw(view, state, *SIZE))
            if second == STORE_IS_FAST_S:
                server.calm()
            await asyncio.sleep(max(0.0, story.began_s + second + 1 - time.monotonic()))
    return cast


def main() -> None:
    """Run the job, and write the recording."""
    with S3Server() as server, tempfile.TemporaryDirectory(prefix="fd-") as home:
        _data(server)
        server.script("imagenet", "*", always=late(0.9))
        settings = ("fetch.parts_in_flight=1", "fetch.hedge_share=0")
        with Daemon(Path(home), server.url, workers=2, settings=settings, forked=False) as daemon:
            story = _Story()
            trainers = [
                threading.Thread(target=_train, args=(story, daemon.address, rank), daemon=True)
                for rank in range(RANKS)
            ]
            for trainer in trainers:
                trainer.start()
            try:
                cast = asyncio.run(_record(daemon.address, server, story))
            finally:
                story.over.set()
                for trainer in trainers:
                    trainer.join(PATIENT_S)
    TARGET.write_text("\n".join(cast.lines) + "\n", encoding="utf-8")
    print(f"{TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
