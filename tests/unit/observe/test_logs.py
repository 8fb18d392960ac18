"""Logs: one line per event in the form asked for, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from typing import TYPE_CHECKING

import pytest
import structlog

from feedd.observe.logs import REDACTED, configure_logging, redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "wJalrXUtnFEMI-K7MDENG"


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_time_level_and_fields() -> None:
    """A JSON record is one object per line with time, level, event and the fields given."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("ready", sessions=2)
    structlog.get_logger().debug("too quiet")
    (line,) = _lines(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line.pop("time", "").__class__ is str
    assert line == {"event": "ready", "level": "info", "sessions": 2}


def test_fields_of_the_process_are_in_every_line() -> None:
    """Also of other threads, which see no context variables, and of libraries."""
    stream = io.StringIO()
    configure_logging("json", "info", stream, fields={"lane": 3})
    for say in (structlog.get_logger().info, logging.getLogger("library").warning):
        thread = threading.Thread(target=say, args=("said",))
        thread.start()
        thread.join()
    assert [json.loads(line)["lane"] for line in stream.getvalue().splitlines()] == [3, 3]


def test_library_records_take_the_same_form() -> None:
    """Warnings of libraries arrive in the same form; their chatter does not arrive."""
    stream = io.StringIO()
    configure_logging("json", "debug", stream)
    logging.getLogger("botocore").info("chatter")
    logging.getLogger("botocore").warning("password=%s", SECRET)
    (line,) = _lines(stream)
    assert line["logger"] == "botocore"
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_never_reach_the_log(form: str) -> None:
    """Secrets are hidden by name, by shape, in nested values, in exceptions and in tracebacks."""
    stream = io.StringIO()
    configure_logging("json" if form == "json" else "text", "info", stream)
    log = structlog.get_logger()
    log.info("a", aws_secret_access_key=SECRET, headers={"Authorization": SECRET, "x": [f"token={SECRET}"]})
    log.info("b", session_token=SECRET.encode(), Password=SECRET, note=f"https://user:{SECRET}@host/path")
    signed = f"GET /x?X-Amz-Signature={SECRET}&X-Amz-Security-Token={SECRET}&part=1"
    log.info(signed, error=ValueError(f"Signature={SECRET}"))
    try:
        int(f"Authorization: Bearer {SECRET}")
    except ValueError:
        log.exception("c")
    assert SECRET not in stream.getvalue()
    assert REDACTED in stream.getvalue()
    assert "part=1" in stream.getvalue()


@pytest.mark.parametrize("user", [f"user:{SECRET}", f":{SECRET}", SECRET, f"user:{SECRET}@{SECRET}"])
def test_what_stands_before_a_host_is_hidden(user: str) -> None:
    """A password, a token alone, and a password with an @ in it."""
    assert redact_text(f"at https://{user}@host:443/path@1 now") == f"at https://{REDACTED}@host:443/path@1 now"


def test_counts_are_not_secrets() -> None:
    """A number, or a folder of tokenizers, whose name merely looks like a secret stays readable."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    config = {"decode.tokenizers": "/srv/tokenizers"}
    structlog.get_logger().info("batch", tokens=2048, token_count=7, s3={"bucket": "b"}, config=config)
    (line,) = _lines(stream)
    assert line["config"] == config
    assert (line["tokens"], line["token_count"], line["s3"]) == (2048, 7, {"bucket": "b"})


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/key-1.tar",
        "expected 3 tokens, got 2",
        "https://host:443/path?x=1",
        "tokens=2048, token_count: 7, pad_token=0, eos_token: </s>, tokenizer=gpt2",
        "design=new, config: a, key=train/0001.jpg, access_key_id=AKIAIOSFODNN7EXAMPLE",
        "expected a Bearer token, got Basic authentication",
        "the fields are 'token', 'label' and 'signature'",
        "etag 9bb58f26192e4ba00f01e2e7b136bbd8, sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "-----BEGIN CERTIFICATE-----",
        "hf_datasets_cache, sk-learn, gh_pages, task-0123456789012345678901234567890123",
        "AKIAIOSFODNN7EXAMPLE/20261128/us-east-1/s3/aws4_request",
    ],
)
def test_plain_texts_are_untouched(text: str) -> None:
    """Redaction leaves ordinary URLs, words, names of keys and checksums alone."""
    assert redact_text(text) == text


_LONG = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12"  # as long as AWS's
_SHAPES = {
    "azure's signed URL": "https://acct.blob.core.windows.net/c/x?sv=2020&sig={}&se=1",
    "encoded in another URL": "https://h/?next=https%3A%2F%2Fb%2Fx%3FX-Amz-Signature%3D{}",
    "aws's signed URL": "https://b.s3.amazonaws.com/k?X-Amz-Security-Token={}&X-Amz-Date=1",
    "google's signed URL": "https://storage.googleapis.com/b/k?X-Goog-Signature={}",
    "aws's signature": "Credential=AKIA/2026, SignedHeaders=host, Signature={}",
    "xml": "<SecretAccessKey>{}</SecretAccessKey><SessionToken>{}</SessionToken>",
    "json": '{{"SecretAccessKey": "{}", "SessionToken" : "{}"}}',
    "json in json": '"{{\\"SecretAccessKey\\": \\"{}\\"}}"',
    "python": "{{'aws_secret_access_key': '{}', b'session_token': b'{}'}}",
    "ini": "aws_secret_access_key = {}\naws_session_token={}",
    "words": "Secret Access Key: {}",
    "api keys": "api_key={} apikey: {} X-API-Key: {} DD-API-KEY={} WANDB_API_KEY={}",
    "azure's connection string": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "azure's environment": "AZURE_STORAGE_ACCOUNT_KEY={} AZURE_STORAGE_SAS_TOKEN={}",
    "azure's bus": "SharedAccessKeyName=n;SharedAccessKey={};SharedAccessSignature={}",
    "azure's header": "Authorization: SharedKey acct:{}",
    "azure's header without a name": "sent SharedKey acct:{}",
    "aws's credential": "X-Amz-Credential={}",
    "another scheme": "authorization: Negotiate {} {}",
    "a plain token": "?token={}&x=1 token: {}",
    "oauth": "client_secret={}&refresh_token={}&access_token={}&id_token={}&client_id=x",
    "bearer": "Authorization: Bearer {}",
    "bearer without a name": "curl -H 'Bearer {}1'",
    "basic": "proxy-authorization: Basic {}",
    "basic without a name": "sent Basic {}==",
    "pairs of headers": "[(b'authorization', b'Bearer {}'), ('Cookie', 'a=1; session={}')]",
    "cookie": "Set-Cookie: session={}; Path=/",
    "password": "password={} passwd: {} PGPASSWORD={} MYSQL_PWD={} Pwd={}; passphrase={}",
    "quoted password": "password=\"a {} b\" password='a, {}'",
    "user info": "postgres://user:{}@db/x redis://:{}@h https://{}@host",
    "hugging face": "token hf_{}",
    "github": "ghp_{} gho_{} ghs_{} github_pat_11A_{}",
    "others": "glpat-{} xoxb-1-{} sk-proj-{} AIza{} ya29.{}",
    "environment": "HUGGING_FACE_HUB_TOKEN={} HF_TOKEN={} MY_OWN_TOKEN={} SMTP_PASS={}",
    "json web token": "sent eyJhbGciOiJIUzI1NiJ9.{}.{}",
    "aws's pair": "AKIAIOSFODNN7EXAMPLE:{} ASIAIOSFODNN7EXAMPLE {}",
    "aws's pair in json": '["ASIAIOSFODNN7EXAMPLE", "{}"]',
    "open telemetry": "OTEL_EXPORTER_OTLP_HEADERS=x-honeycomb-team={},b=1 ",
    "open telemetry's traces": "OTEL_EXPORTER_OTLP_TRACES_HEADERS='x-team={}'",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\n{}\n{}\n-----END RSA PRIVATE KEY-----\n",
    "a private key in json": '{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n"}}',
    "a private key without an end": "-----BEGIN PRIVATE KEY-----\n{}\n{}",
    "a private key without a start": "{}\n{}\n-----END OPENSSH PRIVATE KEY-----\n",
}


@pytest.mark.parametrize("name", _SHAPES)
def test_each_shape_of_a_secret_is_hidden(name: str) -> None:
    """A secret is found by its name or its form, also in JSON, in an error and where a text is cut."""
    secret = _SHAPES[name].replace("{}", _LONG).replace("{{", "{").replace("}}", "}")
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    texts = [secret] if "start" in name else [secret, f"at {secret} now", json.dumps(secret)]
    for text in texts:
        assert _LONG not in redact_text(text), redact_text(text)
        assert REDACTED in redact_text(text)
        if "start" not in name:
            structlog.get_logger().warning(f"x {text}", about={"x": [text]}, error=ValueError(text))
    assert _LONG[:20] not in stream.getvalue()
    if "start" not in name:
        first = secret.index(_LONG) + len(_LONG)
        for cut in (4, 12, 20, 30, len(_LONG)):
            shown = redact_text(secret, first - len(_LONG) + cut)
            assert _LONG[:4] not in shown, shown


def test_json_stays_json() -> None:
    """Where a secret is replaced, the quotes around it stay."""
    about = {"SecretAccessKey": "a", "Authorization": "Bearer b", "url": "x?sig=c", "n": 1}
    shown = json.loads(redact_text(json.dumps(about)))
    assert shown == {"SecretAccessKey": REDACTED, "Authorization": REDACTED, "url": f"x?sig={REDACTED}", "n": 1}


def test_a_long_text_is_cut_and_says_so() -> None:
    """Of a text the log holds the first characters and the number of those left out; of a list, its first entries."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().info("x" * 5000, urls=["y" * 5000] * 1000, about=dict.fromkeys(map(str, range(1000)), "z"))
    (line,) = _lines(stream)
    urls, about = line["urls"], line["about"]
    assert line["event"] == "x" * 2048 + "… (2952 characters more)"
    assert isinstance(urls, list)
    assert (len(urls), urls[-1]) == (257, "… (744 entries more)")
    assert isinstance(about, dict)
    assert len(about) == 257
    assert len(stream.getvalue()) < 1 << 20


@pytest.mark.parametrize("before", range(2020, 2060, 3))
def test_a_secret_at_the_cut_is_hidden_too(before: int) -> None:
    """Wherever a text is cut, nothing of a password is left that stood there."""
    for text in (
        f"https://user:{SECRET}@host",
        f"https://:{SECRET}@host",
        f"token={SECRET} ",
        f"Authorization: Bearer {SECRET} {SECRET}",
    ):
        shown = redact_text("." * (before - 30) + " " + text + "." * 4096)
        assert SECRET[:6] not in shown


def test_a_long_traceback_keeps_its_ends() -> None:
    """Of a traceback the log holds the first and the last lines, without a secret from between."""
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    error = ValueError("first\n" + f"password={SECRET}\n" * 10_000 + "last")
    structlog.get_logger().error("failed", exc_info=error)
    (line,) = _lines(stream)
    told = str(line["exception"])
    assert told.startswith("ValueError: first")
    assert told.endswith("last")
    assert "characters left out" in told
    assert len(told) < 40_000
    assert SECRET[-6:] not in told


def test_a_person_at_a_terminal_reads_short_lines() -> None:
    """With ``brief`` a line has the time of day, sizes in units, lists without brackets, and nothing that is empty."""
    stream = io.StringIO()
    configure_logging("text", "info", stream, brief=True, without=("ready",))
    log = structlog.get_logger("test")
    log.info("ready")
    log.info(
        "stopped", fetched_bytes=3 << 20, hint="", steps=None, urls=["s3://b/1", "s3://b/2"], config={"a": 1}, batches=0
    )
    (line,) = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d \[info +\] stopped +", line)
    assert line.split(maxsplit=4)[-1].endswith("batches=0 fetched_bytes=3MiB urls='s3://b/1, s3://b/2'")
