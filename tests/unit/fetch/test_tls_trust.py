"""Authorities of S3 endpoints: a bundle that changes is read again."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadConfig
from feedd.fetch.s3 import tls
from feedd.fetch.s3.tls import Trust
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from pathlib import Path


def _authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder)


async def test_a_bundle_that_grows_counts_for_later_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context for all connections, which gains the new authority; a bundle cut short changes nothing."""
    monkeypatch.setattr(tls, "_LOOK_S", 0.0)
    first, second = _authority(tmp_path / "first"), _authority(tmp_path / "second")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(first.ca_path.read_bytes())
    trust = Trust(lambda: str(bundle))
    context = await trust.context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    bundle.write_text("-----BEGIN CERTIFICATE-----\nhalf\n")
    assert await trust.context() is context
    assert len(context.get_ca_certs()) == 1
    bundle.write_bytes(first.ca_path.read_bytes() + second.ca_path.read_bytes())
    assert await trust.context() is context
    assert len(context.get_ca_certs()) == 2
    bundle.unlink()
    assert await trust.context() is context


async def test_the_file_is_looked_at_once_a_minute(tmp_path: Path) -> None:
    """Between two looks nothing is read."""
    authority = _authority(tmp_path / "ca")
    trust = Trust(lambda: str(authority.ca_path))
    context = await trust.context()
    authority.ca_path.unlink()
    assert await trust.context() is context
    with pytest.raises(BadConfig, match="No such file"):
        await Trust(lambda: str(authority.ca_path)).context()
