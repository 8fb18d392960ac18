"""What a run is known by: the same 16 bytes for the same facts, however they are held."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset import fingerprint as module
from feedd.dataset.fingerprint import fingerprint, runs_of

TEXTS = st.text(max_size=6)
FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda one: st.lists(one) | st.dictionaries(TEXTS, one)
)


@given(
    listing=st.binary(max_size=8),
    facts=st.dictionaries(TEXTS, FACTS, max_size=4),
    column=st.lists(st.tuples(TEXTS, st.integers(1, 9000)), max_size=4),
    block=st.integers(1, 1 << 17),
)
def test_a_column_is_a_list_of_texts(
    listing: bytes, facts: dict[str, object], column: list[tuple[str, int]], block: int
) -> None:
    """Runs of equal texts give what the list would: runs that began under earlier versions go on."""
    texts = [text for text, count in column for _ in range(count)]
    whole = json.dumps({**facts, "formats": texts}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    before = module._BLOCK_BYTES
    module._BLOCK_BYTES = block
    try:
        found = fingerprint(listing, facts, {"formats": runs_of(texts)})
    finally:
        module._BLOCK_BYTES = before
    assert found == hashlib.blake2b(listing + whole.encode(), digest_size=16).digest()
    plain = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert fingerprint(listing, facts) == hashlib.blake2b(listing + plain.encode(), digest_size=16).digest()


def test_runs_are_as_long_as_they_can_be() -> None:
    """Neighbours that are equal are one."""
    assert runs_of(["a", "a", "", "a"]) == (("a", 2), ("", 1), ("a", 1))
    assert runs_of([]) == ()
