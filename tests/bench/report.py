"""What a bench gives back, and how it is shown: absolute figures, ratios beside them, targets met or not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tests.bench.harness import Outcome, Spread


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table.

    Attributes:
        title: with its unit.
        figure: key in the rows.
        scale: factor before showing.
        digits: after the point.
        spread: show minimum and maximum beside the median.
        warmup: taken from the first round, the one that is not counted (memory is sampled there, and only there).
    """

    title: str
    figure: str
    scale: float = 1.0
    digits: int = 1
    spread: bool = False
    warmup: bool = False

    def text(self, outcome: Outcome) -> str:
        """Render the cell of one arm."""
        if self.warmup:
            sampled = outcome.warmup or (outcome.rounds[0] if outcome.rounds else {})
            value = sampled.get(self.figure)
            return "-" if value is None else f"{value * self.scale:,.{self.digits}f}"
        spread = outcome.spread(self.figure)
        if spread is None:
            return "-"
        middle = f"{spread.middle * self.scale:,.{self.digits}f}"
        if not self.spread:
            return middle
        return f"{middle} [{spread.low * self.scale:,.{self.digits}f}-{spread.high * self.scale:,.{self.digits}f}]"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One ratio, and whether it meets its target.

    Attributes:
        text: of what to what.
        ratio: the one that counts: of medians.
        target: what it is held against.
        at_least: it has to be reached, not kept under.
        rounds: the ratios of single rounds. A machine whose speed wanders shows here: neither all rounds of one arm nor
            those of the other need be the fast ones.
    """

    text: str
    ratio: float
    target: float
    at_least: bool = True
    rounds: Spread | None = None

    @classmethod
    def of(
        cls,
        text: str,
        ours: Outcome,
        peer: Outcome,
        figure: str,
        target: float,
        *,
        at_least: bool = True,
        peers: str = "",
    ) -> Verdict:
        """Compare a figure of two arms; ``peers``: the key in the other arm's rows, if it is another."""
        ratio = (ours.middle(figure) or 0.0) / (peer.middle(peers or figure) or float("inf"))
        return cls(text, ratio, target, at_least, ours.over(peer, figure, peers))

    @property
    def met(self) -> bool:
        """Whether it does."""
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.plain} (target {sign} {self.target:g}x) {'met' if self.met else 'NOT met'}{self._round_by_round}"

    @property
    def plain(self) -> str:
        """The ratio without its target."""
        return f"{self.text}: {self.ratio:.2f}x"

    @property
    def _round_by_round(self) -> str:
        if self.rounds is None:
            return ""
        return f"; round by round {self.rounds.low:.2f}-{self.rounds.high:.2f}, median {self.rounds.middle:.2f}"


@dataclass(slots=True)
class Result:
    """What one bench found."""

    name: str
    title: str
    columns: Sequence[Column]
    outcomes: list[Outcome]
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def outcome(self, name: str) -> Outcome | None:
        """Return one arm's, unless it is absent or dropped out."""
        return next((one for one in self.outcomes if one.name == name and not one.failure), None)

    def as_json(self) -> dict[str, Any]:
        """Everything, every round included."""
        return {
            "title": self.title,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in self.verdicts],
            "notes": self.notes,
        }


def show(result: Result, console: Console, *, targets: bool = True) -> None:
    """Print table, ratios and notes.

    Args:
        result: of one bench.
        console: where to.
        targets: hold the ratios against the project's own targets, which a user's machine need not meet.
    """
    table = Table(title=f"{result.name}: {result.title}", title_justify="left", title_style="bold")
    table.add_column("arm", no_wrap=True)
    for column in result.columns:
        table.add_column(column.title, justify="right", no_wrap=column.spread)
    for outcome in result.outcomes:
        cells = [escape(column.text(outcome)) for column in result.columns]
        table.add_row(escape(outcome.name), *(cells if not outcome.failure else ["failed"] * len(cells)))
    console.print()
    console.print(table)
    for verdict in result.verdicts:
        if targets:
            console.print(f"  {escape(str(verdict))}", style="green" if verdict.met else "red", highlight=False)
        else:
            console.print(f"  {escape(verdict.plain)}", highlight=False)
    for note in result.notes:
        console.print(f"  {escape(note)}", style="dim", highlight=False)
