"""Draws how cost grows with ranks and shards: ``python -m tests.bench.growth_plot RESULTS.json ... PICTURE.svg``.

The results are those of ``--only ranks`` and ``--only shards``, in one file or several. The same results give the same
picture, byte for byte. matplotlib is in the peers' environment.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]  # peers' environment

mpl.use("svg")

from matplotlib import pyplot as plt

_INK = "#808080"  # readable on white and on black
_COLORS = ("#3b82c4", "#d97706", "#2f9e6e")
_STYLE = {
    "svg.hashsalt": "feedd",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
_SIZE_INCHES = (9.0, 3.4)
_MICROSECONDS = {0.1: "0.1", 1: "1", 10: "10", 100: "100", 1000: "1,000"}
_BYTES = {1e2: "100 B", 1e4: "10 KB", 1e6: "1 MB", 1e8: "100 MB"}
_TIMES, _SIZES = (0.1, 1e3), (1e2, 1e9)  # the scales of both panels
_RANKS = re.compile(r"(\d+) ranks, prefetch=16")


def _medians(outcome: dict[str, Any]) -> dict[str, float]:
    rounds = outcome["rounds"]
    return {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}


def _ranks(benches: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Return the medians by the number of ranks."""
    found = {}
    for outcome in benches["ranks"]["outcomes"]:
        match = _RANKS.fullmatch(outcome["name"])
        if match is not None and outcome["rounds"]:
            found[int(match[1])] = _medians(outcome)
    return dict(sorted(found.items()))


def _shards(benches: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Return the medians by the number of shards."""
    rows = [_medians(outcome) for outcome in benches["shards"]["outcomes"] if outcome["rounds"]]
    return {int(row["shard_count"]): row for row in sorted(rows, key=lambda row: row["shard_count"])}


def _panel(
    axes: Any,
    title: str,
    rows: dict[int, dict[str, float]],
    times: dict[str, str],
    memory: tuple[str, dict[int, float]],
) -> None:
    """Draw times in microseconds on the left axis, and memory of each unit on the right one."""
    lines = []
    for color, (label, figure) in zip(_COLORS, times.items(), strict=False):
        points = [(count, row[figure]) for count, row in rows.items() if row.get(figure, 0.0) > 0]
        lines += axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=color, label=label)
    axes.set(title=title, xscale="log", yscale="log", ylabel="CPU, us", ylim=_TIMES)
    axes.set_yticks(list(_MICROSECONDS), list(_MICROSECONDS.values()))
    axes.set_xticks(list(rows), [f"{count:,}" for count in rows])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25, color=_INK)
    label, held = memory
    right = axes.twinx()
    lines += right.plot(
        list(held), list(held.values()), marker="s", markersize=4, linestyle="--", color=_INK, label=label
    )
    right.set(yscale="log", ylabel="memory", ylim=_SIZES)
    right.set_yticks(list(_BYTES), list(_BYTES.values()))
    right.minorticks_off()
    axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)


def draw(benches: dict[str, Any], path: Path) -> None:
    """Write the picture."""
    ranks, shards = _ranks(benches), _shards(benches)
    with mpl.rc_context(_STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=_SIZE_INCHES, layout="constrained")
        per_rank = {count: row["anonymous_bytes"] / count for count, row in ranks.items()}
        times = {"loop, per batch": "loop_us", "workers, per batch": "workers_us"}
        _panel(left, "ranks", ranks, times, ("memory per rank", per_rank))
        per_shard = {count: row["held_bytes"] / count for count, row in shards.items()}
        times = {
            "loop, per batch": "warm_loop_us",
            "listing, per shard": "listing_us",
            "open again, per shard": "again_us",
        }
        _panel(right, "shards", shards, times, ("memory per shard", per_shard))
        figure.savefig(path, transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    path.write_text(_smaller(path.read_text()))


def _smaller(svg: str) -> str:
    """Return the picture without comments, metadata, names of groups and fonts, indentation and needless digits."""
    svg = re.sub(r"<!--.*?-->|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<clipPath.*?</clipPath>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'font-family: [^;"]*(; )?| clip-path="[^"]*"', "", svg).replace("*{", "*{font-family: sans-serif; ")
    svg = re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.2f}", svg)
    return "".join(f"{line.strip()}\n" for line in svg.splitlines() if line.strip())


def main() -> None:
    """Read the results, in which later files win, and draw."""
    *sources, target = map(Path, sys.argv[1:])
    benches: dict[str, Any] = {}
    for source in sources:
        benches |= json.loads(source.read_text())["benches"]
    draw(benches, target)


if __name__ == "__main__":
    main()
