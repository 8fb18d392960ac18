"""Addresses of web requests, how long redirects are valid, and where they may lead."""

from __future__ import annotations

import pytest

from feedd.errors import BadRequest, BadResponse, Unsupported
from feedd.fetch.web.target import Target, admission, lifetime_s, object_target, redirected, target_of

HERE = Target("https", "a.example", 443, "/x/y?z")
NOW_S = 1_700_000_000.0


def test_targets() -> None:
    """Host and port stand in one form; what a request cannot hold is encoded, and what is encoded stays."""
    assert target_of("https://A.Example:443/x%20y?q=1") == Target("https", "a.example", 443, "/x%20y?q=1")
    assert target_of("http://[::1]:8080").url == "http://[::1]:8080/"
    assert object_target("https://h", "a b/ü%2F?x=é").path == "/a%20b/%C3%BC%2F?x=%C3%A9"
    assert object_target("https://h", "a\r\nHost: other").path == "/a%0D%0AHost:%20other"


@pytest.mark.parametrize("key", ["../x", "a/..%2fx", ".\n./x", "\x7f..\t/x", "..;/x", "a\0b", "%00"])
def test_no_request_leaves_its_folder(key: str) -> None:
    """Whatever named the key; also if the server drops control characters."""
    with pytest.raises(BadRequest, match="expected a key below its folder"):
        object_target("https://h", key)


@pytest.mark.parametrize("url", ["ftp://h/x", "https:///x", "https://user@h/x", "https://h:x/", "file:///etc/passwd"])
def test_bad_targets(url: str) -> None:
    """Only web servers, without a user's name."""
    with pytest.raises(BadRequest):
        target_of(url)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("https://b.example/k?Signature=a%2Bb", "https://b.example/k?Signature=a%2Bb"),
        ("//b.example/k", "https://b.example/k"),
        ("/k", "https://a.example/k"),
        ("k#part", "https://a.example/x/k"),
    ],
)
def test_redirects(location: str, url: str) -> None:
    """Locations are absolute, or relative to the request."""
    assert redirected(HERE, location, "", "o").url == url


def test_a_redirect_says_which_addresses_its_host_may_have() -> None:
    """Later requests to where a redirect led carry the limit; on the same host nothing changes."""
    public = redirected(HERE, "https://b.example/k", "93.184.216.34", "o")
    assert public.admit is not None
    assert not public.admit("10.0.0.1")
    assert redirected(public, "/l", "10.0.0.1", "o").admit is public.admit
    assert redirected(HERE, "/l", "93.184.216.34", "o").admit is None
    behind_proxy = redirected(HERE, "https://c.example/k", "", "o")
    assert behind_proxy.admit is not None
    assert not behind_proxy.admit("10.0.0.1")


def test_redirects_that_are_refused() -> None:
    """No redirect gives up encryption, reads files or carries a password."""
    with pytest.raises(Unsupported, match="https"):
        redirected(HERE, "http://a.example/k", "", "o")
    for location in ("file:///etc/passwd", "https://u:p@b.example/", ""):
        with pytest.raises(BadResponse):
            redirected(HERE, location, "", "o")


@pytest.mark.parametrize(
    ("query", "valid_s"),
    [
        ("", 60),
        ("Expires=1700000600&Signature=x", 570),
        ("Expires=1699999999&Signature=x", 0),
        ("Expires=1800000000", 3600),
        ("Expires=soon", 60),
        ("X-Amz-Date=20231114T221320Z&X-Amz-Expires=900", 870),
        ("X-Goog-Date=20231114T221320Z&X-Goog-Expires=900", 870),
        ("X-Amz-Date=nonsense&X-Amz-Expires=900", 60),
        ("se=2023-11-14T22:23:20Z&sig=x", 570),
    ],
)
def test_how_long_a_redirect_is_valid(query: str, valid_s: float) -> None:
    """A signed address is used until shortly before its signature ends, and an hour at most."""
    assert lifetime_s(Target("https", "h", 443, f"/k?{query}"), NOW_S) == valid_s


@pytest.mark.parametrize(
    ("origin", "target", "admitted"),
    [
        ("93.184.216.34", "93.184.216.34", True),
        ("93.184.216.34", "10.0.0.1", False),
        ("93.184.216.34", "127.0.0.1", False),
        ("93.184.216.34", "169.254.169.254", False),
        ("93.184.216.34", "100.64.0.1", False),
        ("93.184.216.34", "::ffff:10.0.0.1", False),
        ("93.184.216.34", "64:ff9b::10.0.0.1", False),
        ("93.184.216.34", "64:ff9b::93.184.216.34", True),
        ("93.184.216.34", "2002:a9fe:a9fe::1", False),
        ("93.184.216.34", "168.63.129.16", False),
        ("10.0.0.1", "fd00:ec2::254", False),
        ("2606:2800:220:1::1", "fd00:ec2::254", False),
        ("2606:2800:220:1::1", "2606:2800:220:1::2", True),
        ("10.0.0.1", "10.0.0.2", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.1", "169.254.169.254", False),
        ("10.0.0.1", "fe80::1%eth0", False),
        ("10.0.0.1", "no address", False),
    ],
)
def test_where_redirects_may_lead(origin: str, target: str, admitted: bool) -> None:
    """A public server leads to public addresses only, and nobody to link-local ones."""
    assert admission(origin)(target) is admitted
