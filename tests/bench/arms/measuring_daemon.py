"""``feedd serve`` whose metrics a line on stdin switches: ``on`` or ``off``; each is answered with a line."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from feedd.cli import main as feedd
from feedd.observe.recorder import PrometheusRecorder

_NAMES = ("count", "gauge", "move", "observe")


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _listen(answers: int) -> None:
    real = {name: getattr(PrometheusRecorder, name) for name in _NAMES}
    for line in sys.stdin:
        for name in _NAMES:
            setattr(PrometheusRecorder, name, real[name] if line.strip() == "on" else _nothing)
        os.write(answers, b"done\n")


def main() -> None:
    """Run ``feedd`` with the arguments."""
    answers = os.dup(1)
    threading.Thread(target=_listen, args=(answers,), daemon=True).start()
    feedd()


if __name__ == "__main__":
    main()
