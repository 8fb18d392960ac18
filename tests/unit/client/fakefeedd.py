"""What test_client_autostart installs as ``feedd``: ``serve --ephemeral`` that ends with its last HOLD connection."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from tests.budget import PATIENT_S

_ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Serve; or fail on command."""
    if os.environ.get("FAKE_FEEDD_FAILS"):
        sys.exit("expected a cache directory, got nothing")
    # The server needs the client's messages only: a package without its first module, which imports torch for seconds.
    sys.modules["feedd_client"] = ModuleType("feedd_client")
    sys.modules["feedd_client"].__path__ = [str(_ROOT / "client" / "feedd_client")]
    from tests.fakes.feed_script import Script  # noqa: PLC0415 - see above
    from tests.fakes.feed_server import FakeFeed  # noqa: PLC0415 - see above

    assert sys.argv[1:4] == ["serve", "--ephemeral", "--listen"]
    path = sys.argv[4].removeprefix("unix://")
    with Path(path).with_name("starts").open("a", encoding="ascii") as starts:
        starts.write(f"{os.getpid()}\n")
    Path(path).with_name("cache-dir").write_text(f"/cache/of/{os.getpid()}")
    wedges = bool(os.environ.get("FAKE_FEEDD_WEDGES"))
    server = FakeFeed(path, Script(steps=40, slot_count=1) if wedges else Script(steps=3))
    if wedges and Path(path).with_name("starts").read_text().count("\n") == 1:
        server.wait_for(lambda: bool(server.releases), 30)
        signal.raise_signal(signal.SIGSTOP)
    server.wait_for(lambda: server.holds_open > 0, 30)
    deadline_s = time.monotonic() + PATIENT_S
    while server.holds_open and time.monotonic() < deadline_s:
        time.sleep(0.05)
    server.stop()
    Path(path).with_name("ended").touch()


if __name__ == "__main__":
    main()
