"""The objects of a very large listing in columns: the same objects as in a tuple."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.conversion import Conversion
from feedd.dataset import listing
from feedd.dataset.fingerprint import listing_digest
from feedd.dataset.listing import Listing
from feedd.dataset.ref_columns import ObjectColumns, RefColumns
from feedd.values import ObjectRef

_TAGS = st.one_of(
    st.text(max_size=40), st.just("0123456789abcdef" * 2), st.sampled_from(["x" * 15, "\0", "\0" * 16, "\0" + "x" * 15])
)
_REFS = st.lists(
    st.builds(
        ObjectRef,
        st.sampled_from(["s3://b", "s3://c", "file://"]),
        st.one_of(st.text(max_size=12), st.just("\udcff.tar")),
        st.integers(0, 1 << 60),
        _TAGS,
        st.sampled_from([None, Conversion("parquet"), Conversion("parquet", "columns"), Conversion("gunzip")]),
    ),
    max_size=20,
)


@given(_REFS, st.data())
def test_columns_hold_the_same_objects(refs: list[ObjectRef], data: st.DataObject) -> None:
    """By index, from the end, in slices, in a loop, and as a search finds them; names need not be text."""
    columns = RefColumns(refs)
    assert list(columns) == refs
    assert len(columns) == len(refs)
    assert [columns[at] for at in range(-len(refs), len(refs))] == [*refs, *refs]
    low, high = (data.draw(st.integers(-25, 25)) for _ in range(2))
    assert list(columns[low:high]) == refs[low:high]
    assert all(columns.index(ref) == refs.index(ref) for ref in refs)
    for outside in (len(refs), -len(refs) - 1):
        with pytest.raises(IndexError, match=f"expected an object of {len(refs)}"):
            columns[outside]


@given(_REFS, _REFS)
def test_columns_are_equal_if_their_objects_are(one: list[ObjectRef], other: list[ObjectRef]) -> None:
    """Views are compared by their objects."""
    assert (RefColumns(one) == RefColumns(other)) == (one == other)
    assert RefColumns(one) == RefColumns(list(one))


@given(_REFS)
def test_hashes_and_digests_are_those_of_the_objects(refs: list[ObjectRef]) -> None:
    """Columns are hashed without making their objects, whatever the names are."""
    columns = RefColumns(refs)
    assert columns.hashes().tolist() == [columns.hash_of(ref) for ref in refs]
    assert columns.sizes.tolist() == [ref.size_bytes for ref in refs]
    plain = [replace(ref, key=ref.key.replace("\ud800", ""), etag=ref.etag) for ref in refs]
    assert listing_digest(RefColumns(plain)) == listing_digest(plain)


def test_columns_of_a_manifest() -> None:
    """Keys and etags of one length take no borders; another version, folder or store is another hash."""
    tags = bytes(range(32))
    parts = ObjectColumns("s3://b", "t/", b"0.tar1.tar", range(0, 11, 5), np.array([3, 4]), tags, range(0, 33, 16))
    columns = RefColumns.of(parts, (None, Conversion("gunzip")), b"\0\1")
    refs = [
        ObjectRef("s3://b", "t/0.tar", 3, tags[:16].hex()),
        ObjectRef("s3://b", "t/1.tar", 4, tags[16:].hex(), Conversion("gunzip")),
    ]
    assert list(columns) == refs
    assert columns == RefColumns(refs)
    assert columns.hashes().tolist() == [columns.hash_of(ref) for ref in refs]
    assert listing_digest(columns) == listing_digest(refs)
    others = [replace(refs[0], etag="e"), replace(refs[0], key="u/0.tar"), replace(refs[0], root="s3://c")]
    assert not {columns.hash_of(ref) for ref in others} & set(columns.hashes().tolist())
    assert columns.converted(lambda _: Conversion("x"))[0] == replace(refs[0], conversion=Conversion("x"))


@given(_REFS)
def test_conversions_are_known_without_the_objects(refs: list[ObjectRef]) -> None:
    """Whether a recipe has to narrow columns is asked at each open."""
    assert RefColumns(refs).conversions == {ref.conversion for ref in refs}


def test_only_many_objects_are_put_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuple answers faster. The listing and its views are the same in either form."""
    monkeypatch.setattr(listing, "_MANY", 3)
    refs = [ObjectRef("s3://b", f"{number}", number, "e") for number in range(3)]
    few, many = Listing.of(refs[:2], 0.0), Listing.of(refs, 0.0)
    assert few.refs == tuple(refs[:2])
    assert isinstance(many.refs, RefColumns)
    assert list(many.refs) == refs
    assert many.digest == Listing.of(many.refs, 0.0).digest
    view = many.as_listed.converted(refs, ("name",))
    assert isinstance(view.refs, RefColumns)
    assert view.find(refs[::-1]).tolist() == [2, 1, 0]
