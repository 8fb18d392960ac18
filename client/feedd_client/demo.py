"""The demo's trainer, and the shortest complete example: a small CNN fed by feedd, alone or under DDP.

Prints one JSON object per line: ``step`` events for progress bars, and one ``epoch`` event per epoch. With
``--lockstep`` it waits for a line on stdin between epochs; the starting process reads the daemon's counters meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from feedd_client import DeviceLoader, FeedDataset, FeedError, Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

MEAN, STD = (0.45, 0.45, 0.45), (0.25, 0.25, 0.25)
_REPORT_EVERY_S = 0.1


def model(classes: int) -> nn.Module:
    """Return a CNN with three convolutions and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def say(event: str, **facts: object) -> None:
    """Print one event as a JSON line."""
    print(json.dumps({"event": event, **facts}), flush=True)


def train_epoch(
    loader: DeviceLoader, net: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace
) -> None:
    """Train one epoch and print its ``epoch`` event."""
    began = time.perf_counter()
    first_s, wait_s, samples, loss_sum, steps = 0.0, 0.0, 0, 0.0, 0
    reported = began
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        now = time.perf_counter()
        wait_s += now - asked
        if batch is None:
            break
        first_s = first_s or now - began
        labels = batch[options.label].long() % options.classes
        loss = nn.functional.cross_entropy(net(batch[options.image]), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch left this one untyped
        optimizer.step()
        steps, samples, loss_sum = steps + 1, samples + len(labels), loss_sum + loss.item()
        if now - reported > _REPORT_EVERY_S:
            reported = now
            say("step", samples=samples)
    say(
        "epoch",
        samples=samples,
        steps=steps,
        loss=loss_sum / max(steps, 1),
        seconds=time.perf_counter() - began,
        first_batch_s=first_s,
        wait_s=wait_s,
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m feedd_client.demo", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image", default="jpg;jpeg;png", help="extension of the picture")
    parser.add_argument("--label", default="cls", help="extension of the integer label")
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--lockstep", action="store_true")
    options = parser.parse_args(argv)
    options.fields = {options.image: f"image:{options.side}x{options.side}", options.label: "int"}
    options.image = options.image.split(";")[0]
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return 1 and print one line to stderr if feedd raises an error."""
    options = parse(argv)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = FeedDataset(options.url, batch_size=options.batch_size, fields=options.fields, shuffle=True, seed=0)
    loader = DeviceLoader(dataset, device=device, transforms=[Normalize(MEAN, STD)])
    net: nn.Module = model(options.classes).to(device)
    if distributed:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    try:
        for epoch in range(options.epochs):
            if options.lockstep:
                say("ready", epoch=epoch)
                if not sys.stdin.readline():
                    return 1
            dataset.set_epoch(epoch)
            train_epoch(loader, net, optimizer, options)
    except FeedError as error:
        print(f"training stopped: {error}", file=sys.stderr)
        return 1
    finally:
        if distributed:
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
