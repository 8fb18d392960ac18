"""Daemons on the nodes of a Ray cluster: one for each node, started by an actor of that node.

The driver calls ``start_daemons()`` once. A worker calls ``daemon_address()`` and reads through the daemon of its node:

    dataset = FeedDataset("s3://bucket/train/", batch_size=256, address=daemon_address())

The actor is named, detached and bound to its node. The actor holds the daemon by a connection, as a process of a
process tree does. So the daemon ends with the actor, and the actor ends with its node, however that died.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feedd.errors import BadConfig, FeeddError, PermissionDenied, ResourceExhausted, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE: Final = "feedd"
"""Ray namespace of the actors. Each has the name ``daemon-NODE_ID``."""

_HOLD: Final = b"HOLD!" + bytes(16)  # what a process says to an ephemeral daemon: see feedd/serve/arena_socket.py
_YES: Final = b"\x01"
_STAGE: Final = "ray"
_START_TIMEOUT_S: Final = 60.0
_PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # between starts of a daemon that keeps ending
_STEADY_S: Final = 60.0  # a daemon that lived that long starts the pauses anew
_WRONG_CONFIGURATION: Final = 2  # exit code that no restart mends
_LOOK_S: Final = 0.02
_RETRY_S: Final = 0.5
_STOP_S: Final = 60.0
_LOG_LINES: Final = 15
_OF_CLIENTS: Final = ("FEEDD_ADDRESS", "FEEDD_EPHEMERAL_ADDRESS", "FEEDD_EXECUTABLE")


def start_daemons(settings: Mapping[str, object] | None = None, *, timeout_s: float = 120.0) -> dict[str, str]:
    """Start a daemon on each node of the cluster that has none; wait until all are ready.

    Call this in the driver, after ``ray.init()``. A node that joins later gets its daemon when a worker of that node
    calls ``daemon_address()``.

    Args:
        settings: options by their names, such as ``{"cache.dir": "/mnt/nvme/feedd", "cache.size": "800GiB"}``. Daemons
            that run already keep their own. Without ``cache.dir``, the cache is deleted with the daemon.
        timeout_s: how long all daemons together may take.

    Returns:
        The address of each node's daemon, by Ray's node id.

    Raises:
        Unsupported: Ray is not installed.
        BadConfig: an option is wrong, or Ray is not initialized.
        ResourceExhausted: a daemon does not start, or not in time. The message has the end of its log.
    """
    ray = _ray()
    deadline_s = time.monotonic() + timeout_s
    while True:
        nodes = _alive(ray)
        try:
            found = _addresses(ray, [_actor(ray, node, settings) for node in nodes], timeout_s)
        except ResourceExhausted as error:
            # Ray notices the end of a node after some seconds.
            unsure = isinstance(error.__cause__, ray.exceptions.ActorUnavailableError) or _alive(ray) != nodes
            if not unsure or time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
        else:
            return dict(zip(nodes, found, strict=True))


def daemon_address(settings: Mapping[str, object] | None = None, *, timeout_s: float = 120.0) -> str:
    """Return the address of the daemon of this node; start the daemon if the node has none.

    Call this in a task, an actor or a worker of Ray Train. The arguments and errors are those of ``start_daemons``.
    """
    ray = _ray()
    (address,) = _addresses(ray, [_actor(ray, ray.get_runtime_context().get_node_id(), settings)], timeout_s)
    return address


def stop_daemons() -> None:
    """Stop the daemons of all nodes. Without this call, they run until the cluster ends.

    Raises:
        Unsupported: Ray is not installed.
        BadConfig: Ray is not initialized.
    """
    ray = _ray()
    for node in ray.nodes():
        try:
            actor = ray.get_actor(_name(node["NodeID"]), namespace=NAMESPACE)
            ray.get(actor.stop.remote(), timeout=_STOP_S)
            ray.kill(actor)
        except (ValueError, ray.exceptions.RayError):  # there is none, or its node has gone
            continue


class NodeDaemon:
    """The actor: starts the daemon of its node, holds it, and starts it again when it ends."""

    def __init__(self, node_id: str, settings: Mapping[str, object]) -> None:
        directory = _directory(node_id)
        self._socket = directory / "feedd.sock"
        self._log = directory / "feedd.log"
        self._settings = settings
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._lifeline: socket.socket | None = None
        self._failure: FeeddError | None = None
        self._thread = threading.Thread(target=self._supervise, name="feedd-daemon", daemon=True)
        self._thread.start()

    def address(self, timeout_s: float) -> str | FeeddError:
        """Return the address once the daemon is ready, else why it is not. An error would lose its class on the way."""
        if self._ready.wait(timeout_s):
            return self._failure or f"unix://{self._socket}"
        return self._not_ready(f"no answer within {timeout_s:.0f} s")

    def process_id(self) -> int:
        """Return the process id of the daemon; 0: none is ready now."""
        with self._lock:
            return _peer(self._lifeline) if self._lifeline is not None else 0

    def stop(self) -> None:
        """Stop the daemon, and start no other."""
        with self._lock:
            self._stopping.set()
            if self._lifeline is not None:
                self._lifeline.shutdown(socket.SHUT_RDWR)
        self._thread.join(_STOP_S)

    def _supervise(self) -> None:
        failures = 0
        while not self._stopping.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)]):
            began_s = time.monotonic()
            code = self._run_once()
            if self._failure is not None:
                return
            failures = 1 if time.monotonic() - began_s > _STEADY_S else failures + 1
            if code == _WRONG_CONFIGURATION:
                self._failure = self._not_ready(f"exit code {code}")
                self._ready.set()
                return

    def _run_once(self) -> int:
        """Run one daemon from its start to its end; return its exit code."""
        predecessor_s = time.monotonic() + _START_TIMEOUT_S
        while (left := _greeted(self._socket)) is not None and time.monotonic() < predecessor_s:
            left.close()  # of an actor that was killed: it ends as soon as nothing holds it
            time.sleep(_LOOK_S)
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ray kills process groups, too
            )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while (hold := _greeted(self._socket)) is None:
            if process.poll() is not None:
                return process.returncode
            if time.monotonic() > deadline_s:
                process.kill()  # the shell; the daemon ends soon, because nothing holds it
            time.sleep(_LOOK_S)
        with hold:
            with self._lock:
                stopping = self._stopping.is_set()
                self._lifeline = None if stopping else hold
            if not stopping:
                self._ready.set()
                with contextlib.suppress(OSError):
                    hold.settimeout(None)
                    hold.recv(1)  # returns when the daemon ends, or stop() is called
            with self._lock:
                self._lifeline = None
        return process.wait()

    def _command(self) -> list[str]:
        # Ray kills the children of an actor that ends. A grandchild has time to delete its cache.
        command = ["/bin/sh", "-c", '"$@" & wait $!', "feedd"]
        command += [sys.executable, "-m", "feedd", "serve", "--ephemeral", "--listen", f"unix://{self._socket}"]
        command += ["--log", "json"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def _not_ready(self, got: str) -> FeeddError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines() if self._log.exists() else []
        tail = "\n".join(lines[-_LOG_LINES:]) or "(empty log)"
        return ResourceExhausted(
            f"expected the daemon of this node to be ready, got {got}:\n{tail}",
            object=str(self._log),
            hint=f"the lines above are the end of its log on {socket.gethostname()}",
            stage=_STAGE,
        )


def _ray() -> Any:  # noqa: ANN401 - a module
    """Return Ray, initialized.

    Raises:
        Unsupported: Ray is not installed.
        BadConfig: Ray is not initialized.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unsupported("expected ray, got no such package", hint="pip install 'feedd[ray]'", stage=_STAGE) from error
    if not ray.is_initialized():
        raise BadConfig("expected a connection to a Ray cluster, got none", hint="call ray.init() first", stage=_STAGE)
    return ray


def _alive(ray: Any) -> list[str]:  # noqa: ANN401 - a module
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def _name(node_id: str) -> str:
    return f"daemon-{node_id}"


def _actor(ray: Any, node_id: str, settings: Mapping[str, object] | None) -> Any:  # noqa: ANN401 - Ray has no types
    """Return the actor of a node; create it if the node has none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

    options = {
        "name": _name(node_id),
        "namespace": NAMESPACE,
        "lifetime": "detached",  # it outlives the driver
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": 16,  # many workers may wait for the address while another call asks to stop
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return ray.remote(NodeDaemon).options(**options).remote(node_id, dict(settings or {}))


def _addresses(ray: Any, actors: list[Any], timeout_s: float) -> list[str]:  # noqa: ANN401 - Ray has no types
    try:
        # Ray's own limit comes second: the actor knows the reason.
        found: list[str | FeeddError] = ray.get(
            [actor.address.remote(timeout_s) for actor in actors], timeout=timeout_s + 10.0
        )
    except ray.exceptions.RayError as error:
        raise ResourceExhausted(
            f"expected an actor of feedd on each node, got {' '.join(str(error).split())}",
            hint="install feedd on all nodes; ray list actors shows their state",
            stage=_STAGE,
        ) from error
    addresses = []
    for one in found:
        if isinstance(one, FeeddError):
            raise one
        addresses.append(one)
    return addresses


def _directory(node_id: str) -> Path:
    """Return the private directory of a node's socket and log; create it if missing.

    The directory lies among those of daemons that clients start. Clients delete those that are an hour
    old and have no daemon.

    Raises:
        PermissionDenied: the directory belongs to another user.
    """
    base = Path(tempfile.gettempdir()) / f"feedd-{os.getuid()}"
    directory = base / f"ray-{node_id[:16]}"
    for path in (base, directory):
        path.mkdir(mode=0o700, exist_ok=True)
        stat = path.lstat()
        if stat.st_uid != os.getuid() or path.is_symlink():
            raise PermissionDenied(
                f"expected a directory of user {os.getuid()}, got one of user {stat.st_uid}",
                object=str(path),
                hint="remove it, or set TMPDIR for Ray",
                stage=_STAGE,
            )
    return directory


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_CLIENTS}


def _peer(connection: socket.socket) -> int:
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def _greeted(socket_path: Path) -> socket.socket | None:
    """Return a connection that keeps the daemon running; None: no daemon accepts it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(1.0)
        connection.connect(f"{socket_path}.arena")
        connection.sendall(_HOLD)
        if connection.recv(1) == _YES:
            return connection
    except OSError:
        pass
    connection.close()
    return None
