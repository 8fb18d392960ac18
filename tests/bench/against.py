"""``python -m tests.bench --against CHECKOUT``: this checkout and another take turns, and their ratios are shown.

Each side runs its own benches with its own environment, one round at a time. The side that begins changes with each
round. A ratio is this checkout's figure over the other's of the same round; the median over the rounds counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from tests.bench.harness import Spread
from tests.bench.peers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

_LIMIT_S: Final = 900.0  # one bench, one round
_THIS: Final = "this"
_OTHER: Final = "other"
_FIGURES: Final = re.compile(r"_per_s|cpu|_ms_|_s$|_us$|_bytes$")
_OURS: Final = {
    "columns": ("feedd", "feedd, shuffled"),
    "first_batch": (
        "feedd, daemon warm, cache warm",
        "feedd, daemon warm, cache cold",
        "feedd, daemon cold, cache cold",
    ),
    "handoff": ("feedd lease, images 38.5 MB", "feedd lease, tokens 1.05 MB"),
    "jpeg": ("feedd", "feedd, cache warm"),
    "objects": ("feedd",),
}
"""Rows of feedd. Of other benches all rows run, those of the peers' environment excepted."""

Rows = dict[tuple[str, str, str], float]
"""Figures of one round, by bench, row and figure."""


class NoResult(RuntimeError):
    """A bench of one side failed; its last words are the message."""


def run_once(checkout: Path, bench: str, options: Sequence[str]) -> Rows:
    """Run one bench of a checkout for one round, with more options of ``python -m tests.bench``.

    Raises:
        NoResult: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="feedd-against-") as folder:
        target = Path(folder) / "result.json"
        command = [str(checkout / ".venv" / "bin" / "python"), "-m", "tests.bench", "--only", bench]
        done = subprocess.run(
            [*command, "--rounds", "1", "--peers", "off", "--json", str(target), *options],
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if not target.exists():
            raise NoResult(f"{bench} of {checkout}: exit {done.returncode}: {done.stdout[-1000:].strip()}")
        return dict(_figures(json.loads(target.read_text())))


def _figures(document: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], float]]:
    for bench, result in document["benches"].items():
        for outcome in result["outcomes"]:
            for name, value in (outcome["rounds"] or [{}])[0].items():
                if isinstance(value, int | float) and not isinstance(value, bool) and _FIGURES.search(name):
                    yield (bench, outcome["name"], name), float(value)


def ratios(rounds: Sequence[dict[str, Rows]]) -> dict[tuple[str, str, str], Spread]:
    """Return the ratios of this checkout's figures to the other's, over the rounds in which both have them."""
    keys = dict.fromkeys(key for one in rounds for key in one[_THIS])
    found = {}
    for key in keys:
        pairs = [(one[_THIS].get(key), one[_OTHER].get(key)) for one in rounds]
        values = [this / other for this, other in pairs if this is not None and other]
        if values:
            found[key] = Spread.of(values)
    return found


def compare(
    other: Path, benches: Sequence[str], round_count: int, console: Console, *, arms: Sequence[str], quick: bool
) -> dict[str, Any]:
    """Run the benches of both checkouts in turn, print their ratios, and return every round and the ratios.

    Args:
        other: the other checkout, with its own ``.venv``.
        benches: their names.
        round_count: how often each side runs each bench.
        console: where tables go.
        arms: the rows to run; none: those of feedd.
        quick: small data.

    Raises:
        SystemExit: the other checkout cannot run benches.
    """
    other = other.resolve()
    if not (other / ".venv" / "bin" / "python").exists() or not (other / "tests" / "bench").is_dir():
        sys.exit(f"expected a checkout of feedd with its .venv in {other}: run make venv there")
    sides = {_THIS: ROOT, _OTHER: other}
    document: dict[str, Any] = {_OTHER: str(other), "benches": {}}
    for bench in benches:
        rounds: list[dict[str, Rows]] = []
        wanted = arms or _OURS.get(bench, ())
        options = [*(["--quick"] if quick else []), *(["--arms", *wanted] if wanted else [])]
        for number in range(round_count):
            order = [_THIS, _OTHER] if number % 2 == 0 else [_OTHER, _THIS]
            console.print(f"{bench}: round {number + 1}, {order[0]} first", style="dim", highlight=False)
            rounds.append({side: run_once(sides[side], bench, options) for side in order})
        found = ratios(rounds)
        _show(bench, rounds, found, console)
        document["benches"][bench] = {
            "rounds": [{side: _named(one) for side, one in row.items()} for row in rounds],
            "ratios": _named({key: [one.low, one.middle, one.high] for key, one in found.items()}),
        }
    return document


def _named(figures: dict[tuple[str, str, str], Any]) -> dict[str, Any]:
    return {" | ".join(key): value for key, value in figures.items()}


def _show(
    bench: str, rounds: Sequence[dict[str, Rows]], found: dict[tuple[str, str, str], Spread], console: Console
) -> None:
    table = Table(title=f"{bench}: this checkout / the other, {len(rounds)} rounds", title_justify="left")
    for title in ("row", "figure"):
        table.add_column(title, no_wrap=True)
    for title in ("this", "other", "ratio", "round by round"):
        table.add_column(title, justify="right", no_wrap=True)
    for key, spread in found.items():
        this, other = (Spread.of([one[side][key] for one in rounds if key in one[side]]) for side in (_THIS, _OTHER))
        between = f"{spread.low:.2f}-{spread.high:.2f}"
        table.add_row(
            escape(key[1]), key[2], f"{this.middle:.4g}", f"{other.middle:.4g}", f"{spread.middle:.3f}", between
        )
    console.print(table)
