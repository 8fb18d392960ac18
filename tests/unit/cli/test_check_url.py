"""``feedd check URL``: each step of reading a bucket, what to do where one fails, and never a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.cli.check import Verdict, examine_url
from feedd.config import load
from feedd.errors import BadRequest
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.faults import denied
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.cli.check import Finding
    from tests.unit.cli.conftest import Feedd

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("first_loop", "aws_credentials")]
_URL = "s3://bucket/train/"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with three objects, the first of them empty, that the environment names."""
    with S3Server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        server.put("bucket", "train/0.tar", b"")
        server.put("bucket", "train/1.tar", bytes(3 << 20))
        server.put("bucket", "train/2.tar", b"x")
        yield server


def _found(url: str = _URL, **settings: str) -> dict[str, Finding]:
    flags: dict[str, tuple[object, str]] = {name.replace("__", "."): (text, "flag") for name, text in settings.items()}
    return {finding.question: finding for finding in examine_url(load(flags, {}).config, url)}


def test_a_bucket_that_can_be_read(store: S3Server) -> None:
    """Every step is ok, with its figures; of the first object with bytes 1 MiB is read, and nothing else."""
    found = _found()
    assert {name: finding.verdict for name, finding in found.items() if finding.verdict is not Verdict.FINE} == {
        "checksum": Verdict.NOTE
    }
    assert found["credentials"].detail == "found by env"
    assert found["endpoint"].detail == store.url
    assert found["region"].detail == "us-east-1"
    assert found["listing"].detail.startswith("3 objects on the first page, in ")
    assert found["ranged GET"].detail.startswith("1MiB of s3://bucket/train/1.tar in ")
    assert "of one upload" in found["ETag"].detail
    assert "--checksum-algorithm" in found["checksum"].hint
    assert [one.range for one in store.requests if one.op == "GET"] == ["bytes=0-1048575"]


def test_the_kind_of_checksum_is_named(store: S3Server) -> None:
    """Where the store keeps one, its algorithm is told."""
    store.put("bucket", "train/0.tar", b"abc", Kept("crc32c"))
    found = _found()
    assert found["checksum"].verdict is Verdict.FINE
    assert found["checksum"].detail == "crc32c, of the whole object"


def test_no_credentials(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials no request is sent, and the ways to give them are named."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    found = _found()
    assert list(found) == ["credentials"]
    assert found["credentials"].verdict is Verdict.FAILED
    assert "anonymous = true" in found["credentials"].hint
    assert not store.requests


def test_anonymous_requests_need_none(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public bucket is read without credentials."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    found = _found(s3__bucket__anonymous="true")
    assert "anonymous" in found["credentials"].detail
    assert found["ranged GET"].verdict is Verdict.FINE


def test_a_listing_that_is_refused(store: S3Server) -> None:
    """The permission that is missing is named. An object that may be read is read all the same."""
    store.script("bucket", "", op="LIST", always=denied())
    found = _found()
    assert list(found)[-1] == "listing"
    assert found["listing"].verdict is Verdict.FAILED
    assert "s3:ListBucket" in found["listing"].hint
    found = _found("s3://bucket/train/2.tar")
    assert (found["listing"].verdict, found["ranged GET"].verdict) == (Verdict.FAILED, Verdict.FINE)


def test_a_get_that_is_refused(store: S3Server) -> None:
    """Who may list and not read is told which permission is missing."""
    store.script("bucket", "train/1.tar", always=denied())
    found = _found()
    assert found["listing"].verdict is Verdict.FINE
    assert (found["ranged GET"].verdict, list(found)[-1]) == (Verdict.FAILED, "ranged GET")
    assert "s3:GetObject" in found["ranged GET"].hint


def test_a_bucket_of_another_region(store: S3Server) -> None:
    """It can be read, and the setting that saves the redirect is named."""
    store.gate.place("bucket", "eu-west-1")
    found = _found()
    assert found["ranged GET"].verdict is Verdict.FINE
    assert found["bucket region"].verdict is Verdict.NOTE
    assert 'region = "eu-west-1" under [s3."bucket"]' in found["bucket region"].hint


def test_nothing_below_a_prefix_and_no_such_bucket(store: S3Server) -> None:
    """Both fail in the listing, with what to compare."""
    empty, nowhere = _found("s3://bucket/none/")["listing"], _found("s3://no-such-bucket/x/")["listing"]
    assert (empty.verdict, nowhere.verdict) == (Verdict.FAILED, Verdict.FAILED)
    assert "no object's URL begins with" in empty.detail
    assert nowhere.hint


def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt, and what to look at; a password in the address is not shown."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    found = _found()
    assert found["listing"].verdict is Verdict.FAILED
    assert "endpoint_url" in found["listing"].hint
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hidden@127.0.0.1:9")
    found = _found()
    assert found["endpoint"].detail == "http://(redacted)@127.0.0.1:9"
    assert "hidden" not in str(found)


def test_the_first_of_a_list_and_a_manifest(store: S3Server) -> None:
    """Braces stand for a list, of which the first is read; of a manifest its own object is."""
    assert "1MiB of s3://bucket/train/1.tar" in _found("s3://bucket/train/{1..2}.tar")["ranged GET"].detail
    store.put("bucket", "all.manifest", b'[{"prefix": "s3://bucket/"}]')
    found = _found("manifest+s3://bucket/all.manifest")
    assert (found["HEAD"].verdict, found["ranged GET"].verdict) == (Verdict.FINE, Verdict.FINE)


def test_local_data_is_read_too(tmp_path: Path) -> None:
    """Of a folder the listing and a read are shown; one that is not there fails."""
    (tmp_path / "a.tar").write_bytes(b"abc")
    found = _found(f"{tmp_path}/")
    assert [(name, finding.verdict) for name, finding in found.items()] == [
        ("listing", Verdict.FINE),
        ("read", Verdict.FINE),
    ]
    assert _found(f"{tmp_path}/none/")["listing"].verdict is Verdict.FAILED


def test_a_web_server_is_read_too(store: S3Server) -> None:
    """An object of a web server needs no credentials; a folder fails with what to write instead."""
    found = _found(f"{store.url}/bucket/train/1.tar")
    assert found["ranged GET"].verdict is Verdict.FINE
    assert "credentials" not in found
    assert "SHA-256" in found["checksum"].hint
    folder = _found(f"{store.url}/bucket/train/")["listing"]
    assert folder.verdict is Verdict.FAILED
    assert "{000000..000099}" in folder.hint


def test_the_command_shows_it_and_fails_with_it(feedd: Feedd, store: S3Server, short_dir: Path) -> None:
    """A second table follows the machine's; a failed step is exit code 1; no secret is shown."""
    machine = (
        "--cache-dir",
        str(short_dir / "cache"),
        "--cache-size",
        "16MiB",
        "--listen",
        f"unix://{short_dir}/f.sock",
    )
    small = ("--set", "cache.free_reserve=0", "--set", "arena.size=1MiB", "--status", "off")
    outcome = feedd("check", _URL, *machine, *small)
    assert outcome.code == 0, outcome
    assert "ranged GET" in outcome.out
    store.script("bucket", "train/1.tar", always=denied())
    refused = feedd("check", _URL, *machine, *small)
    assert refused.code == 1
    assert "failed" in refused.out
    assert "test-secret-key" not in outcome.out + refused.out
    assert "test-access-key" not in outcome.out + refused.out


def test_a_url_that_is_none_is_bad_usage() -> None:
    """It is refused before anything is asked."""
    with pytest.raises(BadRequest, match="expected s3://"):
        _found("ftp://host/x")


def test_an_augmented_manifest_and_its_first_object(store: S3Server) -> None:
    """The lines are read, and the first object that they name, in another bucket, is checked as well."""
    lines = b'{"source-ref": "s3://images/a.jpg", "label": 1}\n{"source-ref": "s3://images/b.jpg", "label": 2}\n'
    store.put("bucket", "x.manifest", lines)
    store.put("images", "a.jpg", b"picture")
    findings = examine_url(load({}, {}).config, "augmented+s3://bucket/x.manifest")
    told = [(one.question, one.detail) for one in findings if one.question in {"lines", "ranged GET"}]
    assert [question for question, _ in told] == ["ranged GET", "lines", "ranged GET"]
    assert told[1][1] == "2 samples with source-ref, label, 2 objects"
    assert "7B of s3://images/a.jpg" in told[2][1]


def test_an_augmented_manifest_with_broken_lines(store: S3Server) -> None:
    """Broken lines are a note; a text that is no such manifest, and a missing object, are failures."""
    store.put("bucket", "x.manifest", b'{"a-ref": "s3://bucket/none"}\nnonsense\n')
    found = _found("augmented+s3://bucket/x.manifest")
    assert (found["lines"].verdict, found["HEAD"].verdict) == (Verdict.NOTE, Verdict.FAILED)
    store.put("bucket", "x.manifest", b"nonsense\n")
    assert _found("augmented+s3://bucket/x.manifest")["lines"].verdict is Verdict.FAILED
