"""Which columns a session's shards have: a view of the listing that all share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.catalog.wanted_columns import counting, narrowed
from feedd.conversion import text_of
from feedd.dataset.listing import Listing
from feedd.recipe.recipe import parse_field
from feedd.tables.converter import formed
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from feedd.dataset.listing import DatasetView
    from feedd.values import FieldRecipe


def listing(*keys: str, firsts: tuple[int, ...] = (0,)) -> DatasetView:
    """Return a listing of these objects, as the shelf makes one."""
    return Listing.of(formed([ObjectRef("s3://b", key, 10, key) for key in keys]), 0.0, firsts).as_listed


def recipe(*names: str) -> tuple[FieldRecipe, ...]:
    """Return fields of these names."""
    return tuple(parse_field(name, "int") for name in names)


def forms(view: DatasetView) -> list[str]:
    """Return the form of each object."""
    return [text_of(ref.conversion) for ref in view.refs]


def test_columns_are_part_of_the_form() -> None:
    """The same ones in any order are the same shards; others are others; objects without columns stay as they are."""
    whole = listing("a.parquet", "b.tar", "c.tar.gz", "d.csv")
    view = narrowed(whole, [recipe("b", "A;c")])
    assert forms(view) == ['parquet:[["a","c"],["b"]]', "", "gunzip", 'csv:[["a","c"],["b"]]']
    assert narrowed(whole, [recipe("c;a", "B")]).refs == view.refs
    assert narrowed(whole, [recipe("b")]).refs != view.refs
    assert forms(narrowed(whole, [()])) == forms(whole) == ["parquet", "", "gunzip", "csv"]
    plain = listing("a.tar", "b.tar.gz")
    assert narrowed(plain, [recipe("b")]) is plain


def test_sources_have_columns_of_their_own() -> None:
    """Each by its recipe, the same object too."""
    view = narrowed(listing("a.parquet", "b.parquet", "a.parquet", firsts=(0, 2)), [recipe("x"), recipe("y")])
    assert forms(view) == ['parquet:[["x"]]', 'parquet:[["x"]]', 'parquet:[["y"]]']


def test_a_view_and_its_listing_learn_together() -> None:
    """Counts do not depend on columns."""
    whole = listing("a.parquet", "b.parquet")
    view = narrowed(whole, [recipe("x")])
    view.learn(1, 7)
    whole.learn(0, 3)
    assert view.counts == whole.counts == {0: 3, 1: 7}
    assert view.listing is whole.listing


def test_arrays_have_rows_of_their_own() -> None:
    """What one says of its rows holds for those who read the same ones; what is told of all holds for everybody."""
    whole = listing("a.npz", "b.h5.gz", "c.npz")
    whole.listing.add_counts({2: 5}, {}, ())
    short, long = narrowed(whole, [recipe("x")]), narrowed(whole, [recipe("y", "z")])
    short.learn(0, 2)
    long.learn(0, 7)
    short.learn(1, 3)
    assert (whole.counts, short.counts, long.counts) == ({2: 5}, {2: 5, 0: 2, 1: 3}, {2: 5, 0: 7})
    assert narrowed(whole, [recipe("z", "y")]).counts is long.counts
    assert narrowed(whole, [()]).counts is whole.counts
    for number in range(200):
        narrowed(whole, [recipe(f"x{number}")]).learn(0, number)
    assert len(whole.listing._counts_apart) == 64
    assert narrowed(whole, [recipe("x199")]).counts[0] == 199


def test_very_many_columns_are_all() -> None:
    """A form is kept with every entry, and must not grow without bound."""
    assert forms(narrowed(listing("a.parquet"), [recipe(*(f"column{n}" for n in range(2_000)))])) == ["parquet"]


def test_rows_are_counted_without_columns_where_that_is_less() -> None:
    """Of objects whose footer or metadata tells the rows."""
    refs = [ObjectRef("s3://b", key, 10, "e") for key in ("a.parquet", "b.arrow", "c.npz", "d.csv", "e.h5", "f.tar")]
    forms = [text_of(ref.conversion) for ref in counting(refs)]
    assert forms == ["parquet:rows", "arrow:rows", "npz:rows", "csv", "hdf5", ""]
