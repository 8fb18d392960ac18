"""The documents say what formats there are as the code has them."""

from __future__ import annotations

import gzip
import io

import pyarrow.csv
import pytest

from feedd.conversion import text_of
from feedd.errors import FeeddError
from feedd.formats import format_registry as formats
from feedd.formats.suffixes import endings
from feedd.tables import registry as forms
from tests.fakes.made import made_of
from tests.fakes.making import make
from tests.fuzz.targets import TARGETS
from tests.tidy.formats_table import _SAME_AS, rows, shown, table

pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # the library opens a pipe for good when it is first used


def test_the_page_has_the_table_as_it_is() -> None:
    """Renew it with ``python -m tests.tidy.formats_table``."""
    assert shown() == table()


def test_every_format_and_form_is_in_the_table() -> None:
    """Nothing is left out but what feedd makes for itself, and ways of compressing, which have a line of their own."""
    named = {row[0] for row in rows()}
    ways = set(endings())
    assert set(formats.extensions()) - named == {"table", *_SAME_AS}
    assert set(forms.names()) - named == ways


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_is_said_of_compressed_shards_is_so(row: tuple[str, ...]) -> None:
    """A shard of that format, compressed, is made into what it was, or what is made of it plain; or it is not read."""
    name, said = row[0], row[5]
    url_names = {**formats.extensions(), **forms.names()}[name]
    found = False
    for ending in url_names:
        seed = TARGETS[name].seeds()[0]
        if ending.startswith("."):
            url, form = f"a{ending}.gz", text_of(forms.conversion_for(f"s3://b/a{ending}.gz"))
        elif name == "litdata":
            url, form = (
                "chunk-0-0.zstd.bin",
                text_of(forms.conversion_for("s3://b/chunk-0-0.zstd.bin")).replace("unzstd", "gunzip"),
            )
        else:
            url, form = "a.xyz", text_of(forms.conversion_of(f"{ending.removesuffix('+')}.gz", "s3://b/a.xyz"))
        if not form:
            continue
        try:
            got = made_of(form, url, gzip.compress(seed))
        except FeeddError:
            continue
        made = name in forms.names()
        found = found or got == (made_of(name, url, seed) if made else (name, seed))
    assert said == ("yes" if found else "no")


@pytest.mark.parametrize("name", ["text", "jsonl", "recordio"])
def test_fields_are_called_as_is_said(name: str) -> None:
    """Of formats whose fields have names of their own the table has them all."""
    fields = next(row[2] for row in rows() if row[0] == name)
    seed = TARGETS[name].seeds()[0]
    if name in forms.names():
        index = make(forms.get(name), seed).index
    else:
        index = formats.get(name).index(memoryview(seed), "s3://b/a")
    for field in index.fields:
        assert f"`{field}`" in fields
    assert index.sample_count
