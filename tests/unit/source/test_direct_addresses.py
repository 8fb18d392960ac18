"""Which address comes next."""

from __future__ import annotations

from feedd.source.s3.direct.addresses import Addresses


def test_each_takes_its_turn() -> None:
    """Connections begin at one address after the other, and each has all of them to try."""
    addresses = Addresses()
    assert addresses.order() == []
    addresses.learn(["a", "b", "c", "a"])
    assert [addresses.order() for _ in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_failed_come_last() -> None:
    """Where nobody answered is tried after all others, until somebody does."""
    addresses = Addresses()
    addresses.learn("abc")
    addresses.failed("b")
    assert [addresses.order()[-1] for _ in range(6)] == ["b"] * 6
    addresses.worked("b")
    assert {addresses.order()[0] for _ in range(3)} == set("abc")


def test_resolution_replaces() -> None:
    """A new resolution forgets what is no longer in it, failures too."""
    addresses = Addresses()
    addresses.learn("abc")
    addresses.failed("a")
    addresses.learn("xb")
    addresses.learn("ab")
    assert {addresses.order()[0] for _ in range(2)} == {"a", "b"}
