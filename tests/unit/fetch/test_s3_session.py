"""Closing the SDK's client closes its sockets, and it knows what it needs of the SDK's data."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
from botocore.loaders import Loader
from botocore.session import Session

from feedd.errors import StoreUnavailable
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.s3 import client as s3_client
from feedd.fetch.s3 import session as s3_session
from feedd.fetch.s3.client import warm
from feedd.fetch.s3.session import ClosingSession, Transports
from feedd.fetch.s3.store import S3Store
from feedd.values import ByteRange, ObjectRef
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.unit.serve.certs import Authority

DATA = bytes(range(256)) * 4000


class _Transport:
    """One that is gone when told to be, or never."""

    def __init__(self, transports: Transports, *, stuck: bool = False) -> None:
        self._transports, self._stuck = transports, stuck

    def abort(self) -> None:
        """Transport: go away, a turn of the loop later."""
        if not self._stuck:
            asyncio.get_running_loop().call_soon(self._transports.lost, self)


async def test_all_are_waited_for() -> None:
    """The wait is over when the last one is gone."""
    transports = Transports()
    for _ in range(3):
        one = _Transport(transports)
        transports.opened(one, one)
    await transports.gone(60)
    assert repr(transports) == "Transports(0 open)"


async def test_the_wait_has_an_end() -> None:
    """One that never goes is not waited for beyond the deadline."""
    transports = Transports()
    one = _Transport(transports, stuck=True)
    transports.opened(one, one)
    await transports.gone(0.01)
    assert repr(transports) == "Transports(1 open)"


def _connections(port: int) -> int:
    """Count this process's client sockets to ``port``."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not str(link.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as copy:
                count += copy.family == socket.AF_INET and copy.getpeername()[1] == port
        except OSError:  # not connected, or gone by now
            continue
    return count


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_connections_given_up_in_mid_body(tmp_path: Path, *, tls: bool) -> None:
    """Connections whose body was left unread are closed when close returns, TLS's goodbye included."""
    authority = Authority(tmp_path)
    with S3Server(cert=authority.issue("store") if tls else None) as server:
        ref = ObjectRef("s3://bucket", "key", len(DATA), server.put("bucket", "key", DATA))
        server.script("bucket", "key", always=fault.extra_bytes(1))
        access = S3Options(endpoint_url=server.url, anonymous=True, ca_bundle=str(authority.ca_path))
        store = S3Store("bucket", SourceOptions(s3={"*": access}))
        reads = [store.read_into(ref, ByteRange(0, len(DATA)), into(bytearray(len(DATA)))) for _ in range(6)]
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results)
        await store.close()
        port = int(server.url.rpartition(":")[2])
        assert _connections(port) == 0


async def test_certificates_are_read_once_for_each_file(tmp_path: Path) -> None:
    """Sessions share what verifies servers until the file changes; none that adds to it does."""
    authority = Authority(tmp_path)
    path = str(authority.ca_path)
    sessions = [ClosingSession(verify=path) for _ in range(2)]
    first, second = (session._build_verify_context() for session in sessions)
    assert first is second
    assert first.check_hostname
    assert [one["subject"] for one in first.get_ca_certs()]
    with_its_own = ClosingSession(verify=path, client_cert=authority.issue("client"))
    connector = await with_its_own._create_connector(None)
    assert connector._ssl is not first
    await connector.close()
    by_proxy = ClosingSession(verify=path, proxies_config={"proxy_ca_bundle": path})
    assert by_proxy._build_verify_context() is not first
    assert ClosingSession(verify=False)._build_verify_context().verify_mode is ssl.CERT_NONE
    os.utime(path, ns=(1, 1))
    assert sessions[0]._build_verify_context() is not first


async def test_a_rehearsal_that_fails_is_nobodys_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the SDK makes of it: whoever needs a client meets it again."""
    met: list[str] = []

    async def open_client(*_: object, **__: object) -> None:
        met.append("client")
        raise TypeError("an option this version does not know")

    def trusting(_: object) -> None:
        met.append("certificates")
        raise FileNotFoundError("/nowhere")

    def loader() -> None:
        met.append("models")
        raise OSError(errno.EMFILE, "too many open files", "partitions.json")

    monkeypatch.setattr("feedd.fetch.s3.client._loader", loader)
    monkeypatch.setattr("feedd.fetch.s3.client.open_client", open_client)
    monkeypatch.setattr("feedd.fetch.s3.client.trusting", trusting)
    await warm()
    assert met == ["models", "certificates", "client"]


async def test_a_cancelled_rehearsal_begins_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cancels it does not wait for a disk; the process that ends waits for one step."""
    begun, may_end = threading.Event(), threading.Event()
    met: list[str] = []

    def trusting(_: object) -> None:
        begun.set()
        met.append("ended" if may_end.wait(PATIENT_S) else "not ended")

    monkeypatch.setattr("feedd.fetch.s3.client._parse_models", lambda: None)
    monkeypatch.setattr("feedd.fetch.s3.client.trusting", trusting)
    monkeypatch.setattr("feedd.fetch.s3.client._rehearse", lambda: met.append("next step"))
    warming = asyncio.create_task(warm())
    await until(begun.is_set)
    warming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warming
    assert not met
    may_end.set()
    await until(lambda: bool(met))
    await asyncio.sleep(0.05)
    assert met == ["ended"]


@pytest.mark.parametrize("service", ["s3", "sts", "sso", "sso-oidc"])
def test_clients_are_those_of_all_models(service: str, aws_credentials: None) -> None:
    """A client has the same endpoints and operations as with all of botocore's data, which take more memory."""
    found = []
    for loader in (Loader(), s3_client._loader()):
        session = Session()
        session.register_component("data_loader", loader)
        clients = [
            session.create_client(service, region_name=region)
            for region in ("us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1")
        ]
        models = clients[0].meta.service_model
        endpoints = [one.meta.endpoint_url for one in clients]
        found.append((endpoints, models.operation_names, models.shape_names))
    assert found[0] == found[1]
    assert "s3" in s3_client._loader().load_data("endpoints")["partitions"][0]["services"]
    assert "ec2" not in s3_client._loader().load_data("endpoints")["partitions"][0]["services"]
    assert s3_client._loader().load_service_model("s3", "service-2")["documentation"] == ""


@pytest.mark.parametrize("proxies", [None, {}, {"http": "http://127.0.0.1:3128"}])
def test_no_proxy_is_read_only_where_a_proxy_is_set(
    proxies: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it takes as long as the rest of a small request, so requests of sessions without a proxy do not."""
    asked = list[str]()

    def bypasses(url: str) -> bool:
        asked.append(url)
        return False

    monkeypatch.setattr(s3_session, "bypasses_proxies", bypasses)
    session = ClosingSession(proxies=proxies)
    assert session._proxy_config.proxy_url_for("http://10.0.0.1/bucket") == (proxies or {}).get("http")
    assert asked == (["http://10.0.0.1/bucket"] if proxies else [])
