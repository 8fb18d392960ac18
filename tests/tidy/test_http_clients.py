"""Every client of HTTP or gRPC that the product opens is known, with what it reads, follows and trusts."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.tidy.tree import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENERS: Final = frozenset(
    {"ClientSession", "AIOHTTPSession", "ClosingSession", "AioSession", "create_client", "ConnectionPool", "from_url"}
    | {"urlopen", "build_opener", "urlretrieve", "HTTPConnection", "HTTPSConnection", "PoolManager", "ProxyManager"}
    | {"OTLPSpanExporter", "open_connection", "create_connection", "insecure_channel", "secure_channel"}
    | {"AioAssumeRoleCredentialFetcher", "_RefCountedSessionMixin", "_RefCountedSession"}
    | {"InstanceMetadataFetcher", "ContainerMetadataFetcher", "AioInstanceMetadataFetcher", "IMDSFetcher"}
)
"""Names that open a client or a connection to a server."""
LIBRARIES: Final = frozenset(
    {"requests", "httpx", "httpx2", "urllib3", "http", "pycurl", "boto3", "websockets", "niquests", "httpcore"}
    | {"smtplib", "ftplib", "xmlrpc", "socks", "paramiko", "fsspec", "s3fs", "gcsfs", "huggingface_hub", "obstore"}
)
"""Libraries with clients of their own; a file that imports one is a client."""


class Policy(NamedTuple):
    """What a client does besides its requests.

    Attributes:
        netrc: whether passwords of ``~/.netrc`` are sent.
        redirects: which are followed.
        proxy: where a proxy comes from.
        trust: which certificates are accepted.
    """

    netrc: str
    redirects: str
    proxy: str
    trust: str


_NO: Final = "not read"
_NONE: Final = "none is followed"
_ENV: Final = "HTTPS_PROXY, HTTP_PROXY, NO_PROXY"
_SDK: Final = Policy(_NO, _NONE, _ENV, "ca_bundle, AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, or certifi")
_METADATA: Final = Policy(_NO, _NONE, _ENV, "as the SDK; metadata services have no TLS")
_DIRECT: Final = Policy(_NO, _NONE, _ENV, _SDK.trust)
_WEB: Final = Policy(_NO, "without credentials, never from https to http", _ENV, "SSL_CERT_FILE, else as the SDK")
_LOOPBACK: Final = Policy(_NO, "urllib's, on loopback", "as urllib", "no TLS: servers of the demo")
_GRPC: Final = Policy(
    _NO, "gRPC has none", "gRPC's own, and none for Unix sockets", "the daemon's authority, or no TLS"
)
_PEERS: Final = Policy(_NO, _NONE, "none", "the peers' own authority")
_TRACES: Final = Policy(_NO, _NONE, _ENV, "OTEL_EXPORTER_OTLP_CERTIFICATE, or certifi")

KNOWN: Final[dict[tuple[str, str], Policy]] = {
    ("client/feedd_client/filesystem.py", "fsspec"): Policy(_NO, "no HTTP", "none", "the interface alone"),
    ("client/feedd_client/transport.py", "create_connection"): Policy(_NO, "no HTTP", "none", "no TLS: a lifeline"),
    ("client/feedd_client/transport.py", "insecure_channel"): _GRPC,
    ("client/feedd_client/transport.py", "secure_channel"): _GRPC,
    ("feedd/cli/demo.py", "open_connection"): Policy(_NO, "no HTTP", "none", "no TLS: the demo's server, on loopback"),
    ("feedd/cli/demo_data.py", "urlopen"): _LOOPBACK,
    ("feedd/fetch/obstore_store.py", "from_url"): Policy(
        _NO, "obstore's: without credentials to other hosts", _ENV, "obstore's"
    ),
    ("feedd/fetch/s3/pool.py", "create_connection"): _DIRECT,
    ("feedd/fetch/s3/credentials.py", "AioAssumeRoleCredentialFetcher"): _SDK,
    ("feedd/fetch/s3/credentials.py", "AioSession"): _SDK,
    ("feedd/fetch/s3/credentials.py", "create_client"): _SDK,
    ("feedd/fetch/s3/credentials.py", "ClosingSession"): _SDK,
    ("feedd/fetch/s3/credentials.py", "_RefCountedSessionMixin"): _METADATA,
    ("feedd/fetch/s3/store.py", "ConnectionPool"): _DIRECT,
    ("feedd/fetch/s3/client.py", "ClosingSession"): _SDK,
    ("feedd/fetch/s3/client.py", "create_client"): _SDK,
    ("feedd/fetch/s3/session.py", "AIOHTTPSession"): _SDK,
    ("feedd/fetch/web/hub.py", "ClientSession"): Policy(_NO, "within the Hub's host", _ENV, _WEB.trust),
    ("feedd/fetch/web/client.py", "ConnectionPool"): _WEB,
    ("feedd/lanes/node_status.py", "ClientSession"): Policy(_NO, _NONE, "none: a Unix socket", "no TLS: a Unix socket"),
    ("feedd/observe/otel_spans.py", "OTLPSpanExporter"): _TRACES,
    ("feedd/observe/otel_spans.py", "requests"): _TRACES,
    ("feedd/peers/peer_link.py", "ConnectionPool"): _PEERS,
    ("feedd/peers/peer_links.py", "ConnectionPool"): _PEERS,
    ("feedd/serve/admin_client.py", "insecure_channel"): _GRPC,
}


def _clients() -> Iterator[tuple[str, str]]:
    for source in sources():
        if not source.is_product:
            continue
        for node in source.nodes:
            names = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.Name):
                names = [node.id]
            elif isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [(node.module or "").partition(".")[0]]
            known = LIBRARIES if isinstance(node, (ast.Import, ast.ImportFrom)) else OPENERS
            yield from ((str(source.path), name) for name in names if name in known)


def test_every_client_has_a_policy() -> None:
    """A new client of HTTP or gRPC needs a line that says what it reads, follows and trusts."""
    found = set(_clients())
    assert found == set(KNOWN), f"new: {sorted(found - set(KNOWN))}; gone: {sorted(set(KNOWN) - found)}"
    assert not [name for name, policy in KNOWN.items() if policy.netrc != _NO]


def test_no_session_of_aiohttp_reads_netrc_or_follows_redirects() -> None:
    """Sessions of aiohttp neither read passwords of ``~/.netrc`` (``trust_env``) nor follow redirects by themselves."""
    requests = 0
    for source in sources():
        if not source.is_product:
            continue
        calls = [node for node in source.nodes if isinstance(node, ast.Call)]
        for call in calls:
            assert "trust_env" not in {word.arg for word in call.keywords}, f"{source.path}:{call.lineno}"
            receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            sends = isinstance(call.func, ast.Attribute) and call.func.attr in {"get", "post", "put", "head", "request"}
            if sends and receiver.rpartition(".")[2] in {"session", "_session"}:
                follows = {word.arg: ast.unparse(word.value) for word in call.keywords}.get("allow_redirects", "True")
                assert follows == "False", f"{source.path}:{call.lineno}"
                requests += 1
    assert requests >= 3, "the sessions' requests were not found"
