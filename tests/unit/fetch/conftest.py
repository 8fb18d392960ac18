"""Certificates and TLS versions for tests of connections."""

from __future__ import annotations

import ssl

import pytest

from tests.unit.serve.certs import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the client trusts."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def context(authority: Authority, request: pytest.FixtureRequest) -> ssl.SSLContext:
    """The server's."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*authority.issue("store"))
    made.minimum_version = made.maximum_version = request.param
    return made
