"""How commands print: tables, progress and text from elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.progress import Progress

from feedd.cli import report
from feedd.cli.report import Meter, meter, print_line, print_table
from feedd.errors import NotFound

TOTAL = (40, 40 << 20)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which tests move."""
    now = [0.0]
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def _done(count: int) -> tuple[int, int]:
    return count, count << 20


def test_a_table_obeys_no_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup, emoji codes and escape sequences in titles and cells are shown as they are written."""
    monkeypatch.setenv("COLUMNS", "200")
    print_table("s3://[red]/", ("url", ">bytes"), [("[bold]x[/] :smile: \x1b[31m", "7"), None, ("a\nb", "8")])
    shown = capsys.readouterr().out
    assert "s3://[red]/" in shown
    assert "[bold]x[/] :smile: \N{REPLACEMENT CHARACTER}[31m" in shown
    assert "\x1b" not in shown
    print_line("key\x1b]0;title\x07")
    assert capsys.readouterr().out == "key\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}\n"


def test_progress_without_a_terminal_is_a_line_for_each_tenth(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    """A log gets few lines: for each tenth, and for a change after ten seconds."""
    with meter("files", quiet=False) as shown:
        for count in (0, 1, 2, 3, 4, 4):
            shown.show("channel train", _done(count), TOTAL)
        clock[0] = 11.0
        shown.show("channel train", _done(5), TOTAL)
        clock[0] = 99.0
        shown.show("channel train", _done(5), TOTAL)  # nothing has changed
    counts = [line.split()[3] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["0", "4", "5"]


def test_a_line_tells_objects_and_bytes(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    """Errors are shown at once; if the caller wants JSON, nothing is shown."""
    assert clock == [0.0]
    error = NotFound("expected an object, got none", object="s3://b/k")
    for quiet, expected in (
        (False, "feedd: 40 of 40 objects, 40MiB of 40MiB\nfeedd: error: expected an object, got none [s3://b/k]\n"),
        (True, ""),
    ):
        with meter("objects", quiet=quiet) as shown:
            shown.show("", TOTAL, TOTAL)
            shown.error(error)
        assert capsys.readouterr().err == expected


def test_a_terminal_gets_a_bar_for_each_thing(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar that says "listing" gives way to a bar for each thing, with what was there before counted as done."""
    drawn = Progress(disable=True)
    shown = Meter(drawn, unit="files", quiet=False)
    assert [task.description for task in drawn.tasks] == ["listing"]
    shown.show("train", _done(10), TOTAL)
    shown.show("test", _done(0), (1, 5))
    shown.show("train", _done(20), TOTAL)
    assert [(task.description, task.completed, task.fields["count"]) for task in drawn.tasks] == [
        ("train", 20 << 20, "20/40 files"),
        ("test", 0, "0/1 files"),
    ]
    assert not capsys.readouterr().err
