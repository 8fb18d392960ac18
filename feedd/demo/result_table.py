"""The tables that the demo prints at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from feedd.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from feedd.demo.nodes import Counters


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """One epoch over all ranks, with the counters of each node's daemon."""

    epoch: int
    loss: float
    samples: int
    samples_per_s: float
    first_batch_s: float
    wait_share: float
    nodes: tuple[Counters, ...]

    @classmethod
    def of(cls, epoch: int, ranks: Sequence[dict[str, Any]], nodes: Sequence[Counters]) -> EpochFacts:
        """Combine the results of all ranks; the slowest rank decides the duration."""
        seconds = max(rank["seconds"] for rank in ranks)
        samples = sum(rank["samples"] for rank in ranks)
        return cls(
            epoch=epoch,
            loss=sum(rank["loss"] * rank["samples"] for rank in ranks) / max(samples, 1),
            samples=samples,
            samples_per_s=samples / seconds,
            first_batch_s=max(rank["first_batch_s"] for rank in ranks),
            wait_share=sum(rank["wait_s"] / rank["seconds"] for rank in ranks) / len(ranks),
            nodes=tuple(nodes),
        )


def show(console: Console, facts: Sequence[EpochFacts], node_count: int, *, own_data: bool) -> None:
    """Print the summary: results of the trainers, and counters of each node's daemon."""
    trainers = _table("training", "epoch", "loss", "samples", "samples/s", "first batch", "waiting for data")
    for row in facts:
        trainers.add_row(
            str(row.epoch),
            f"{row.loss:.3f}",
            str(row.samples),
            f"{row.samples_per_s:.0f}",
            format_duration(row.first_batch_s),
            f"{row.wait_share:.1%}",
        )
    daemons = _table("daemons", "epoch", "node", "S3 GETs", "S3 bytes", "cache hits", "cache misses")
    for row in facts:
        for number, node in enumerate(row.nodes):
            daemons.add_row(
                str(row.epoch),
                str(number),
                f"{node.gets:.0f}",
                format_size(node.read_bytes),
                f"{node.hits:.0f}",
                f"{node.misses:.0f}",
            )
    console.print(trainers, daemons)
    if node_count > 1:
        total = sum(node.read_bytes for node in facts[0].nodes) or 1
        shares = ", ".join(f"{node.read_bytes / total:.0%}" for node in facts[0].nodes)
        console.print(f"each node fetched its own part of the objects: {shares}")
    if not own_data and len(facts) > 1:
        fell = facts[-1].loss < facts[0].loss
        console.print("[green]the loss fell" if fell else "[red]the loss did not fall")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=f"feedd demo: {title}", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
