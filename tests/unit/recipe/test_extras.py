"""Libraries that only some kinds of data need: whoever meets such data without them is told what to install."""

from __future__ import annotations

import io
import re
import sys
import tomllib
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd.errors import BadShard, Unsupported
from feedd.formats.litdata import ARROW_END
from feedd.recipe import extras
from feedd.recipe import recipe as recipes
from feedd.tables import registry
from tests.fakes import making
from tests.tidy.tree import ROOT

EXTRA_OF_FORM: Final = {
    "arrow": "parquet",
    "csv": "parquet",
    "csv-pipe": "parquet",
    "csv-semicolon": "parquet",
    "hdf5": "hdf5",
    "litdata-arrow": "parquet",
    "parquet": "parquet",
    "tsv": "parquet",
    "unzstd": "compressed",
}
EXTRA_OF_CODEC: Final = {"audio": "audio", "tokenize": "text"}
READERS: Final = {f"feedd.tables.{name}" for name in ("arrow", "arrow_columns", "delimited", "hdf5", "npz", "parquet")}
LIBRARIES: Final = ("pyarrow", "h5py", "zstandard", "isal", "lmdb", "soundfile", "soxr", "tokenizers")
DECLARED: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def _sample(form: str) -> bytes:
    if form == "litdata-arrow":  # whose end is read first, without the library
        return bytes(32) + ARROW_END
    if form != "parquet":  # as is its footer
        return b"a,b\n1,2\n"
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2]}), file)
    return file.getvalue()


def _without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this an installation without extras; of our modules those that imported one are imported anew."""
    from feedd import tables as forms  # noqa: PLC0415 - its attributes are what ``from`` finds before sys.modules

    for name in [*sys.modules]:
        if name in READERS:
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(forms, name.rpartition(".")[2], raising=False)
        elif name.split(".")[0] in LIBRARIES:
            monkeypatch.setitem(sys.modules, name, None)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("form", sorted({*registry.names(), *EXTRA_OF_FORM}))
def test_a_form_names_its_extra(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form there is: with a library missing the error's hint installs it; others do without any."""
    data = _sample(form)
    _without_libraries(monkeypatch)
    extra = EXTRA_OF_FORM.get(form)
    if extra is None:
        with pytest.raises(BadShard):
            making.make(registry.get(form), data)
        return
    with pytest.raises(Unsupported) as caught:
        making.make(registry.get(form), data)
    assert caught.value.hint == f"install feedd[{extra}]"
    assert f"install feedd[{extra}]" in str(caught.value)


@pytest.mark.parametrize("codec", sorted({*recipes._EXTRAS, *EXTRA_OF_CODEC}))
def test_a_codec_names_its_extra(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At open, before a worker meets a sample, whichever of its modules is missing; and again in a worker."""
    extra, *modules = recipes._EXTRAS[codec]
    assert extra == EXTRA_OF_CODEC[codec]
    for missing in modules:
        monkeypatch.setattr(extras, "find_spec", lambda name, missing=missing: None if name == missing else True)
        with pytest.raises(Unsupported, match=missing) as caught:
            recipes.parse_field("x", f'{{"decode": "{codec}", "tokenizer": "a"}}')
        assert caught.value.hint == f"install feedd[{extra}]"


def test_extras_that_are_named_are_there() -> None:
    """What a hint says can be installed, and brings the library."""
    for extra in {*EXTRA_OF_FORM.values(), *EXTRA_OF_CODEC.values()}:
        packages = {re.split(r"[><=]", one)[0] for one in DECLARED[extra]}
        assert packages & set(LIBRARIES), extra
    for module in (module for _, *modules in recipes._EXTRAS.values() for module in modules):
        assert any(one.startswith(module) for names in DECLARED.values() for one in names), module
