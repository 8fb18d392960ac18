"""Which address comes next."""

from __future__ import annotations

from feedd.fetch.s3.pool import QUARANTINE_FIRST_S, QUARANTINE_MAX_S, Addresses
from feedd.units import MIB


def _known(names: str) -> Addresses:
    addresses = Addresses()
    addresses.learn(names)
    return addresses


def _firsts(addresses: Addresses, count: int = 6) -> set[str]:
    return {addresses.order({})[0] for _ in range(count)}


def test_each_takes_its_turn() -> None:
    """Connections begin at one address after the other, and each has all of them to try."""
    assert Addresses().order({}) == []
    addresses = _known("abca")
    assert len(addresses) == 3
    assert [addresses.order({}) for _ in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_least_to_do_goes_first() -> None:
    """A new connection goes where the fewest requests are under way."""
    addresses = _known("abc")
    for _ in range(3):
        assert addresses.order({"a": 2, "b": 1, "c": 3}) == list("bac")


def test_avoided_comes_after_the_others() -> None:
    """A request that is sent again goes to another address than before, whatever there is to do."""
    addresses = _known("abc")
    for _ in range(3):
        assert addresses.order({"b": 9, "c": 8}, avoid="a") == list("cba")
    assert addresses.shunned("a", avoid="a")
    assert not _known("a").shunned("a", avoid="a"), "where there is no other, it goes there again"


def test_failed_come_last_until_they_answer() -> None:
    """Where nobody answered is tried after all others, kept connections included, until it answers as usual."""
    addresses = _known("abc")
    addresses.failed("b", 0)
    assert [addresses.order({})[-1] for _ in range(6)] == ["b"] * 6
    assert addresses.shunned("b")
    assert not addresses.shunned("a")
    addresses.timed("b", MIB, 0.1, 1)
    assert not addresses.shunned("b")
    assert _firsts(addresses) == set("abc")


def test_all_failed_are_all_tried() -> None:
    """Where every address is bad each is as good as any other."""
    addresses = _known("ab")
    for name in "ab":
        addresses.failed(name, 0)
    assert sorted(addresses.order({})) == ["a", "b"]
    assert not addresses.shunned("a")


def test_probed_once_at_longer_and_longer_intervals() -> None:
    """One request probes a bad address when its quarantine is over; each failure doubles it, up to a limit."""
    addresses, now_s, lengths_s = _known("ab"), 100.0, []
    addresses.failed("a", now_s)
    for _ in range(10):
        began_s = now_s
        while addresses.due(now_s) is None:
            now_s += 0.25
        lengths_s.append(now_s - began_s)
        assert addresses.due(now_s) is None, "one probe is enough"
        addresses.failed("a", now_s)
    expected = [min(QUARANTINE_MAX_S, QUARANTINE_FIRST_S * 2**index) for index in range(10)]
    assert lengths_s == expected


def test_many_failures_at_once_are_one() -> None:
    """Sixteen parts that fail together do not make a quarantine of hours."""
    addresses = _known("ab")
    for _ in range(16):
        addresses.failed("a", 0)
    assert addresses.due(QUARANTINE_FIRST_S) == "a"


def test_a_probe_nobody_finished_is_made_again() -> None:
    """A probe that was cancelled leaves the address to the next one."""
    addresses = _known("ab")
    addresses.failed("a", 0)
    assert addresses.due(1) == "a"
    assert addresses.due(1.5) is None
    assert addresses.due(2) == "a"


def test_slow_again_and_again_is_bad() -> None:
    """An address that is several times slower than usual, three times in a row, is left."""
    addresses = _known("ab")
    for _ in range(10):
        addresses.timed("a", 8 * MIB, 0.1, 0)
        addresses.timed("b", 8 * MIB, 0.1, 0)
    for _ in range(2):
        addresses.timed("b", 8 * MIB, 5, 0)
    assert not addresses.shunned("b")
    addresses.timed("b", 8 * MIB, 5, 0)
    assert addresses.shunned("b")
    assert addresses.due(QUARANTINE_FIRST_S) == "b"
    addresses.timed("b", 8 * MIB, 5, 1)  # the probe
    assert addresses.due(1 + QUARANTINE_FIRST_S) is None
    assert addresses.due(1 + 2 * QUARANTINE_FIRST_S) == "b"


def test_late_now_and_then_is_not() -> None:
    """A few late answers among many, as every store has them, cost an address nothing."""
    addresses = _known("ab")
    for index in range(100):
        addresses.timed("ab"[index % 2], 8 * MIB, 5 if index % 20 < 2 else 0.1, 0)
        assert not addresses.shunned("a")
        assert not addresses.shunned("b")


def test_given_up_counts_where_it_was_slow() -> None:
    """An answer nobody waited for to its end says something only if it took long already."""
    addresses = _known("ab")
    for _ in range(10):
        addresses.timed("a", 8 * MIB, 0.1, 0)
    for _ in range(5):
        addresses.timed("b", 8 * MIB, 0.1, 0, whole=False)
    assert not addresses.shunned("b")
    for _ in range(3):
        addresses.timed("b", 8 * MIB, 2, 0, whole=False)
    assert addresses.shunned("b")


def test_slower_everywhere_is_the_new_usual() -> None:
    """Where all addresses become slow none is worse than the others for long."""
    addresses = _known("ab")
    for duration_s in [0.1] * 10 + [1.0] * 40:
        for name in "ab":
            addresses.timed(name, 8 * MIB, duration_s, 0)
    assert not addresses.shunned("a")
    assert not addresses.shunned("b")


def test_resolution_replaces() -> None:
    """A new resolution forgets what is no longer in it, failures too."""
    addresses = _known("abc")
    addresses.failed("a", 0)
    addresses.learn("xb")
    addresses.learn("ab")
    assert _firsts(addresses) == {"a", "b"}
    addresses.failed("z", 0)  # of an older resolution
    assert "0 in quarantine" in repr(addresses)
