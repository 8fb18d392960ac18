"""Ceph's radosgw on loopback: a cluster of one monitor, one OSD that keeps its data in memory, and one gateway.

The cluster lies in a folder of its own and ends with its context. Debian and Ubuntu have the programs in the packages
``radosgw``, ``ceph-mon``, ``ceph-osd`` and ``ceph-common``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from feedd.errors import BadConfig
from feedd.units import MIB
from tests.bench.ingest.store import Served
from tests.bench.procs import cpu_s_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.ingest.authority import Certificate
    from tests.bench.ingest.store import Place

_PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "ceph", "monmaptool", "radosgw-admin", "setpriv")
_INSTALL = "apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common util-linux"
_COMMAND_S = 60.0  # creating the user creates pools, which takes some 10 s
_READY_S = 60.0
_STOP_S = 10.0
_POLL_S = 0.1
_SOCKET_PATH_BYTES_MAX = 107
_UPLOAD_PART_BYTES = 8 * MIB  # what the usual upload tools take
_LOG_BYTES = 2000
_MEMORY_RATIO = 2  # of the OSD's size to its objects: Ceph stops writes long before its OSD is full
_USER = "bench"

# Data in memory, one copy, no authentication between the daemons, no logs. All else is Ceph's default.
_CONFIG = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
mon allow pool size one = true
mon data = {folder}/mon
mon cluster log file = {folder}/cluster.log
osd data = {folder}/osd
osd objectstore = memstore
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
memstore device bytes = {memory_bytes}
run dir = {folder}
crash dir = {folder}
pid file =
keyring = {folder}/keyring
admin socket =
log file = {folder}/$name.log

[client.rgw.bench]
admin socket = {socket}
debug rgw = 0
rgw frontends = beast endpoint=127.0.0.1:{port} {tls}
"""


@dataclass(frozen=True, slots=True)
class RadosgwEndpoint:
    """One endpoint of a gateway; a ``Server`` for a section of the run.

    Attributes:
        url: of the endpoint.
    """

    url: str
    _gateway: Radosgw

    def served(self, *, reset: bool = False) -> Served:
        """Return the cluster's counters, of both endpoints together; there are no draws to reset."""
        del reset
        return self._gateway.served()


class Radosgw:
    """Runs the cluster; a context manager.

    Args:
        folder: an existing, empty folder.
        place: the objects to come, and the credentials of their owner.
        certificate: of a second endpoint with TLS; None: plain HTTP only.
    """

    def __init__(self, folder: Path, place: Place, certificate: Certificate | None = None) -> None:
        self._folder = folder
        self._place = place
        self._keys = place.environment["AWS_ACCESS_KEY_ID"], place.environment["AWS_SECRET_ACCESS_KEY"]
        self._certificate = certificate
        self._config = folder / "ceph.conf"
        self._socket = folder / "rgw.asok"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self.plain = self.tls = RadosgwEndpoint("", self)

    def __enter__(self) -> Self:
        """Start the cluster.

        Raises:
            BadConfig: programs are missing, the folder's path is too long, or a daemon does not start.
        """
        _check_programs()
        if len(str(self._socket)) > _SOCKET_PATH_BYTES_MAX:
            message = f"expected a socket's path of at most {_SOCKET_PATH_BYTES_MAX} bytes, got {self._socket}"
            raise BadConfig(message, hint="name a shorter folder with --dir", stage="bench")
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def upload(self, root: Path) -> None:
        """Store the objects' files under ``root``, in parts as the usual tools do; anybody may read them."""
        place = self._place
        client = boto3.client(
            "s3",
            endpoint_url=self.plain.url,
            region_name=place.region,
            aws_access_key_id=self._keys[0],
            aws_secret_access_key=self._keys[1],
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )
        client.create_bucket(Bucket=place.bucket)
        transfer = TransferConfig(multipart_threshold=_UPLOAD_PART_BYTES, multipart_chunksize=_UPLOAD_PART_BYTES)
        for key, _ in place.objects:
            path, public = str(root / place.bucket / key), {"ACL": "public-read"}
            client.upload_file(path, place.bucket, key, ExtraArgs=public, Config=transfer)

    def served(self) -> Served:
        """Return what the gateway has sent, and the CPU seconds of all three daemons."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_STOP_S)
            connection.connect(str(self._socket))
            connection.sendall(b'{"prefix": "perf dump"}\0')
            with connection.makefile("rb") as answer:
                counters = json.loads(answer.read(int.from_bytes(answer.read(4))))["rgw"]
        cpu_s = cpu_s_of(process.pid for process in self._processes.values())
        # radosgw counts HEADs as GETs, and each GET's body as one byte less than it has
        return Served(counters["get"], counters["failed_req"], counters["get_b"], cpu_s)

    def _start(self) -> None:
        mon_port, port, tls_port = _free_ports(3)
        fsid, tls = str(uuid.uuid4()), ""
        if self._certificate is not None:
            tls = f"ssl_endpoint=127.0.0.1:{tls_port}"
            tls += f" ssl_certificate={self._certificate.cert} ssl_private_key={self._certificate.key}"
        self._config.write_text(
            _CONFIG.format(
                fsid=fsid,
                folder=self._folder,
                mon_port=mon_port,
                memory_bytes=_MEMORY_RATIO * self._place.size_bytes + 1024 * MIB,
                socket=self._socket,
                port=port,
                tls=tls,
            )
        )
        (self._folder / "keyring").touch()
        (self._folder / "osd").mkdir()
        monmap = str(self._folder / "monmap")
        _command("monmaptool", "--create", "--addv", "a", f"[v2:127.0.0.1:{mon_port}]", "--fsid", fsid, monmap)
        self._ceph("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._daemon("ceph-mon", "-i", "a")
        self._ceph("ceph", "osd", "create")  # waits for the monitor
        self._ceph("ceph-osd", "--mkfs", "-i", "0")
        self._daemon("ceph-osd", "-i", "0")
        user = ("--uid", _USER, "--display-name", _USER, "--access-key", self._keys[0])
        self._ceph("radosgw-admin", "user", "create", *user, "--secret-key", self._keys[1])
        self._daemon("radosgw", "-n", "client.rgw.bench")
        self.plain = RadosgwEndpoint(f"http://127.0.0.1:{port}", self)
        if tls:
            self.tls = RadosgwEndpoint(f"https://127.0.0.1:{tls_port}", self)
        self._wait_until_ready()

    def _ceph(self, program: str, *words: str) -> None:
        _command(program, "-c", str(self._config), *words)

    def _daemon(self, program: str, *words: str) -> None:
        with (self._folder / f"{program}.out").open("wb") as output:
            self._processes[program] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, "-c", str(self._config), *words, "-f"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_until_ready(self) -> None:
        end_s = time.monotonic() + _READY_S
        while time.monotonic() < end_s:
            for program, process in self._processes.items():
                if process.poll() is not None:
                    said = (self._folder / f"{program}.out").read_text(errors="replace")[-_LOG_BYTES:].strip()
                    raise BadConfig(f"expected {program} to run, got exit {process.returncode}: {said}", stage="bench")
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(self.plain.url, timeout=_STOP_S).close()
                return
            time.sleep(_POLL_S)
        raise BadConfig(f"expected an answer of radosgw within {_READY_S:.0f} s, got none", stage="bench")

    def _stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check_programs() -> None:
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        message = f"expected the programs of Ceph, did not find {', '.join(missing)}"
        raise BadConfig(message, hint=f"install them: {_INSTALL}", stage="bench")


def _command(program: str, *words: str) -> None:
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    except subprocess.TimeoutExpired as error:
        raise BadConfig(f"expected {program} to end within {_COMMAND_S:.0f} s", stage="bench") from error
    if done.returncode:
        said = (done.stderr or done.stdout)[-_LOG_BYTES:].strip()
        raise BadConfig(f"expected {program} to succeed, got exit {done.returncode}: {said}", stage="bench")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
