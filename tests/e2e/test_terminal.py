"""``feedd serve`` at a terminal, where a person reads what it says."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from feedd.units import parse_size
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def _read_until(terminal: int, words: bytes) -> str:
    """Return what the terminal shows up to ``words``, or to its end."""
    shown = b""
    while words not in shown:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    return shown.decode()


def test_serve_tells_a_person_what_to_do_next(short_dir: Path) -> None:
    """A terminal shows a few readable lines and no JSON; the effective configuration stays out of them.

    The cache's size is what the disk has room for.
    """
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "feedd", "serve", "--listen", f"unix://{short_dir}/feedd.sock"]
    command += ["--cache-dir", str(short_dir / "cache"), "--cache-size", "8000TiB", "--status", "off", "--workers", "1"]
    env = os.environ | {"NO_COLOR": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    daemon = subprocess.Popen(command, env=env, stdin=other_end, stdout=other_end, stderr=other_end)
    os.close(other_end)
    try:
        shown = _read_until(terminal, b"see also")
        assert "is ready. Ctrl-C stops it." in shown
        assert f"FEEDD_ADDRESS=unix://{short_dir}/feedd.sock python train.py" in shown
        assert f'address="unix://{short_dir}/feedd.sock")' in shown
        room = re.search(f"{short_dir}/cache, up to ([0-9.]+[A-Z]i?B)\\s", shown)
        assert room is not None, shown
        assert parse_size(room[1]) <= shutil.disk_usage(short_dir).total
        assert "--status 127.0.0.1:7071" in shown
        assert '"event"' not in shown
        before, _, _ = shown.partition("feedd 0")
        first, second = before.splitlines()
        assert re.fullmatch(r"\d\d:\d\d:\d\d \[info +\] starting .*", first), before
        assert "cache is limited by the disk" in second
        assert "decode.workers" not in shown
        daemon.send_signal(signal.SIGTERM)
        _read_until(terminal, b"\0")
        assert daemon.wait(PATIENT_S) == 0
    finally:
        daemon.kill()
        daemon.wait()
        os.close(terminal)
