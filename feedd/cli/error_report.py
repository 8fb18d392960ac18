"""Reports an error on the terminal: one clean line, a hint, and the exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from feedd.config import ConfigProblems
from feedd.errors import BadRequest, FeeddError
from feedd.notices import OBJECTS_EVENT, SIDECARS_EVENT
from feedd.observe.logs import configure_logging, redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.notices import Notice

EXIT_FAILED = 1
EXIT_USAGE = 2


def say(text: str) -> None:
    """Write one line to standard error, without secrets."""
    sys.stderr.write(f"feedd: {redact_text(text, len(text))}\n")


def log_without_notices() -> None:
    """Configure the log without the events that ``say_notices`` prints."""
    configure_logging("text", "warning", without=(OBJECTS_EVENT, SIDECARS_EVENT))


def say_notices(notices: Iterable[Notice]) -> None:
    """Write a line to standard error for each kind of data that is left out or changed."""
    for notice in notices:
        say(f"warning: {notice.text}" if notice.warns else notice.text)


def notice_facts(notices: Iterable[Notice]) -> dict[str, dict[str, Any]]:
    """Return notices by kind for ``--json``, in the form of the client's ``stats()["notices"]``."""
    return {
        notice.kind.value: {
            "text": notice.text,
            "count": notice.amount.count,
            "bytes": notice.amount.size_bytes,
            "warns": notice.warns,
        }
        for notice in notices
    }


def report(error: FeeddError) -> int:
    """Print the error and return the exit code: 2 if the user can correct the command or configuration, else 1.

    With ``FEEDD_DEBUG=1`` the error is raised again, so that its traceback is shown.
    """
    if os.environ.get("FEEDD_DEBUG") == "1":
        raise error
    if isinstance(error, ConfigProblems):
        count = len(error.problems)
        say(f"error: {count} problem{'s' if count > 1 else ''} in the configuration")
        for problem in error.problems:
            say(f"  {problem}")
    else:
        about = f" [{error.object}]" if error.object else ""
        say(f"error: {error.message}{about}")
        if error.hint:
            say(f"hint: {error.hint}")
    return EXIT_USAGE if isinstance(error, BadRequest) else EXIT_FAILED
