"""Foreign exceptions become ours, with the hint that helps."""

from __future__ import annotations

import errno
import ssl
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from botocore import exceptions as boto
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from feedd import errors
from feedd.fetch.s3 import client
from feedd.fetch.s3.errors import RequestContext, Sender, translate, who_answered

READ = RequestContext("read", "s3://b/k", "http://store:9000", "old")


def _refused(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_code, error.verify_message = code, "why"
    return error


def _handshake(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


def _answer(status: int, code: str, op: str = "read", **headers: str) -> errors.FeeddError:
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    error = boto.ClientError(response, "Op")  # type: ignore[arg-type]  # a subset of the keys is what servers send
    return translate(error, RequestContext(op, "s3://b/k", "http://store:9000", "old"))


@pytest.mark.parametrize(
    ("status", "code", "kind", "text"),
    [
        (404, "NoSuchKey", errors.NotFound, "deleted since"),
        (404, "NoSuchBucket", errors.NotFound, "name and region"),
        (403, "AccessDenied", errors.PermissionDenied, "s3:GetObject"),
        (403, "SomethingNew", errors.PermissionDenied, "SomethingNew"),
        (403, "InvalidAccessKeyId", errors.PermissionDenied, "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", errors.PermissionDenied, "SignatureDoesNotMatch"),
        (403, "InvalidObjectState", errors.PermissionDenied, "restore"),
        (400, "KMS.DisabledException", errors.PermissionDenied, "kms:Decrypt"),
        (403, "AccessDenied", errors.PermissionDenied, "requester_pays = true"),
        (400, "InvalidToken", errors.PermissionDenied, "AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", errors.PermissionDenied, "clock"),
        (400, "ExpiredToken", errors.PermissionDenied, "renew"),
        (412, "PreconditionFailed", errors.ObjectChanged, "old"),
        (416, "InvalidRange", errors.ObjectChanged, "old"),
        (503, "SlowDown", errors.Throttled, "503 SlowDown"),
        (429, "TooManyRequests", errors.Throttled, "429"),
        (500, "InternalError", errors.StoreUnavailable, "500"),
        (502, "502", errors.StoreUnavailable, "502"),
        (400, "RequestTimeout", errors.StoreUnavailable, "RequestTimeout"),
        (200, "InternalError", errors.StoreUnavailable, "InternalError"),
        (400, "InvalidArgument", errors.BadRequest, "InvalidArgument"),
    ],
)
def test_answers(status: int, code: str, kind: type[errors.FeeddError], text: str) -> None:
    """Each error code of S3 becomes the decision its caller can take."""
    error = _answer(status, code)
    assert type(error) is kind
    assert text in str(error)
    assert (error.object, error.stage) == ("s3://b/k", "source")


@pytest.mark.parametrize("op", ["head", "read", "list", "write"])
@pytest.mark.parametrize("headers", [{}, {"x-amz-request-id": "1"}])
def test_a_400_without_a_reason_means_sse_c_only_from_s3(op: str, headers: dict[str, str]) -> None:
    """Only S3's own answer to a HEAD or a GET, which gives no reason, is about customers' keys."""
    error = _answer(400, "400", op, **headers)
    assert type(error) is errors.BadRequest
    assert ("SSE-C" in error.hint) == (bool(headers) and op in {"head", "read"})


def test_dots_of_a_bucket_are_not_covered_by_a_certificate() -> None:
    """For a bucket with dots, a certificate of another host is told with the style of addresses that avoids it."""
    error = translate(boto.SSLError(endpoint_url="u", error=_refused(62)), RequestContext("list", "s3://a.b/", "h"))
    assert "addressing_style" in error.hint


@pytest.mark.parametrize(
    ("endpoint", "right"),
    [
        ("https://store/b", "https://store"),
        ("https://store:9000/base/b/", "https://store:9000/base"),
        ("https://b.store", "https://store"),
        ("https://store/bb", ""),
        ("https://bb.store", ""),
    ],
)
@pytest.mark.parametrize("op", ["list", "head", "read"])
def test_a_bucket_in_the_endpoint(endpoint: str, right: str, op: str) -> None:
    """An endpoint that holds the bucket's name is told with the endpoint without it; another is not."""
    response: Any = {"Error": {"Code": "NoSuchKey"}, "ResponseMetadata": {"HTTPStatusCode": 404, "HTTPHeaders": {}}}
    error = translate(boto.ClientError(response, "Op"), RequestContext(op, "s3://b/k", endpoint))
    assert error.hint.partition("set endpoint_url to ")[2] == right


async def test_no_error_shows_an_object() -> None:
    """An error of aiohttp prints its TLS context; the translated error names host and reason only."""
    key: Any = aiohttp.client_reqrep.ConnectionKey("h", 443, True, ssl.create_default_context(), None, None, None, None)
    raised = aiohttp.ClientConnectorError(key, OSError(errno.ECONNREFUSED, "refused"))
    assert " object at 0x" in str(raised)
    error = translate(boto.EndpointConnectionError(endpoint_url="u", error=raised), READ)
    assert " object at 0x" not in str(error)
    assert "h:443 [refused]" in str(error)


def test_listing_names_its_own_permission() -> None:
    """A refused listing names s3:ListBucket."""
    assert "s3:ListBucket" in _answer(403, "AccessDenied", op="list").hint


def test_region_is_named() -> None:
    """The region the store told of is in the hint."""
    hint = _answer(301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-west-3"}).hint
    assert hint == "set AWS_DEFAULT_REGION to eu-west-3, or region = 'eu-west-3' under [s3.\"b\"] in feedd.toml"
    assert "eu-west-3" in _answer(301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-west-3"}).hint


def test_both_etags_are_named() -> None:
    """Where the store tells the new etag, both are in the message."""
    error = _answer(412, "PreconditionFailed", etag='"new"')
    assert "old" in error.message
    assert "new" in error.message


@pytest.mark.parametrize(("said", "expected"), [("7", 7.0), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after(said: str, expected: float | None) -> None:
    """Seconds are read, a date is ignored."""
    error = _answer(503, "SlowDown", **{"retry-after": said})
    assert isinstance(error, errors.Throttled)
    assert error.retry_after_s == expected


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (boto.NoCredentialsError(), errors.PermissionDenied, "anonymous"),
        (boto.ProfileNotFound(profile="p"), errors.BadConfig, "(p)"),
        (
            boto.EndpointConnectionError(endpoint_url="u", error=OSError("refused")),
            errors.StoreUnavailable,
            "store:9000",
        ),
        (boto.ConnectTimeoutError(endpoint_url="u", error="slow"), errors.StoreUnavailable, "store:9000"),
        (
            boto.EndpointConnectionError(endpoint_url="u", error=OSError(errno.EMFILE, "too many")),
            errors.ResourceExhausted,
            "ulimit -n",
        ),
        (OSError(errno.ENFILE, "too many in the system"), errors.ResourceExhausted, "ulimit -n"),
        (boto.MissingDependencyException(msg="pip install x"), errors.BadConfig, "pip install x"),
        (boto.EndpointResolutionError(msg="no dual-stack there"), errors.BadConfig, "no dual-stack there"),
        (boto.UnsupportedS3AccesspointConfigurationError(msg="no fips there"), errors.BadConfig, "no fips there"),
        (boto.SSLError(endpoint_url="u", error=_refused(20)), errors.BadConfig, "ca_bundle"),
        (boto.SSLError(endpoint_url="u", error=_refused(10)), errors.BadConfig, "clock"),
        (boto.SSLError(endpoint_url="u", error=_refused(62)), errors.BadConfig, "subjectAltName"),
        (boto.SSLError(endpoint_url="u", error=OSError("eof")), errors.StoreUnavailable, "eof"),
        (ConnectionResetError("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), errors.BadConfig, "client certificate"),
        (ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"), errors.StoreUnavailable, "broke off"),
        (_handshake("SSLV3_ALERT_HANDSHAKE_FAILURE"), errors.BadConfig, "TLS 1.2 or newer"),
        (_handshake("APPLICATION_DATA_AFTER_CLOSE_NOTIFY"), errors.StoreUnavailable, "broke off"),
        (ssl.SSLEOFError(8, "EOF occurred"), errors.StoreUnavailable, "broke off"),
        (boto.ParamValidationError(report="Invalid bucket name"), errors.BadRequest, "Invalid bucket name"),
        (TimeoutError(), errors.StoreUnavailable, "in time"),
        (ConnectionResetError("reset"), errors.StoreUnavailable, "ConnectionResetError"),
    ],
)
def test_transport(raised: Exception, kind: type[errors.FeeddError], text: str) -> None:
    """What goes wrong before an answer becomes ours as well."""
    error = translate(raised, READ)
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize(
    ("status", "headers", "body", "sender", "shown"),
    [
        (200, {"Content-Type": "text/html"}, b"<title>A &amp; B</title>", Sender.PAGE, '"A & B"'),
        (
            200,
            {"Content-Type": "text/html", "Content-Encoding": "gzip"},
            b"\x1f\x8b\x08zip",
            Sender.PAGE,
            "a web page (",
        ),
        (403, {}, b"\xef\xbb\xbf <!-- x --><!DOCTYPE html><p>No</p>", Sender.PAGE, '"No"'),
        (403, {}, b"<script>go()</script>", Sender.PAGE, "a web page ("),
        (200, {}, b'<?xml version="1.0"?><!DOCTYPE html PUBLIC "x"><html><title>X</title>', Sender.PAGE, '"X"'),
        (404, {"X-Amz-Request-Id": "1", "Content-Type": "text/html"}, b"<html></html>", Sender.STORE, "a store"),
        (404, {}, b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code>', Sender.STORE, "a store"),
        (403, {"Content-Type": "text/html"}, b"<ErrorResponse><Error>", Sender.STORE, "a store"),
        (503, {"Server": "squid/6"}, b"", Sender.PROXY, "server squid/6"),
        (502, {"Via": "1.1 gate", "Content-Type": "text/html"}, b"<h1>Bad Gateway</h1>", Sender.PROXY, "Bad Gateway"),
        (511, {}, b"", Sender.PROXY, "password"),
        (404, {"Content-Type": "application/json"}, b'{"message":"no route"}', Sender.TEXT, "no route"),
        (400, {}, b"The plain HTTP request was sent to HTTPS port", Sender.TLS_PORT, "TLS port"),
        (400, {}, b"You're speaking plain HTTP to an SSL-enabled server port.", Sender.TLS_PORT, "TLS port"),
        (403, {"Via": "1.1 gate"}, b"", Sender.UNKNOWN, "no header of S3"),
        (200, {}, b"<ListBucketResult>", Sender.UNKNOWN, "no header of S3"),
    ],
)
def test_the_sender_of_an_answer(status: int, headers: dict[str, str], body: bytes, sender: Sender, shown: str) -> None:
    """Status, headers and first bytes tell a store from web pages, proxies, other services and ports."""
    found = who_answered(status, headers, body)
    assert found.sender is sender
    assert shown in found.name
    assert found.is_foreign == (sender not in {Sender.STORE, Sender.UNKNOWN})


def test_good_answers_and_tokens_are_not_shown() -> None:
    """Credentials in a good answer, and long tokens in any answer, stay out of the sentence."""
    token = "abcDEF0123456789abcDEF0123456789"
    assert "hidden" not in who_answered(200, {}, b'{"SecretAccessKey": "hidden"}').name
    assert token not in who_answered(403, {"Server": token}, f"<title>{token}</title>".encode()).name


@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["Via", "Server", "content-type", "x-amz-id-2"]), st.text(max_size=200)),
    st.binary(max_size=4096) | st.text(alphabet="<>!-?htmlxtitle/ \n", max_size=4096).map(str.encode),
)
def test_any_answer_has_a_sender(status: int, headers: dict[str, str], body: bytes) -> None:
    """Any answer gives one short printable line."""
    name = who_answered(status, headers, body).name
    assert name.isprintable()
    assert len(name) < 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-01-02T03:04:05.000Z", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2025-01-02T03:04:05Z", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("Thu, 02 Jan 2025 03:04:05 GMT", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (1735787045, datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("1735787045", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_botocore_reads_them(text: Any, expected: datetime) -> None:
    """The fast way to read S3's dates gives what the slow one gives, and leaves other forms to it."""
    assert client._timestamp(text) == expected == parse_timestamp(text)
