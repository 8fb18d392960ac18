"""Which store opens for a root, and what is said where its library is missing."""

from __future__ import annotations

import sys

import pytest

from feedd.catalog.bucket_stores import TransferStore
from feedd.catalog.other_stores import open_store
from feedd.errors import BadRequest, Unsupported
from feedd.fetch import obstore_store
from feedd.fetch.fetch_options import SourceOptions


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("https://h", "HttpStore(https://h)"),
        ("http://h:80", "HttpStore(http://h:80)"),
        ("hf://datasets/o/n@v1", "HubStore(hf://datasets/o/n@v1)"),
    ],
)
async def test_stores_of_the_web(root: str, shown: str) -> None:
    """Each opens without a request, and its transfer threads are counted."""
    store = open_store(root, SourceOptions())
    assert (repr(store), store.root) == (shown, root)
    assert isinstance(store, TransferStore)
    await store.close()


@pytest.mark.parametrize(("root", "advice"), [("gs://b", "HMAC"), ("az://c", "feedd[obstore]"), ("abfss://c", "feedd")])
def test_a_missing_library(root: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore, the error says what to install, and for Google what to write instead."""
    obstore_store._library.cache_clear()
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unsupported, match="obstore") as caught:
        open_store(root, SourceOptions())
    assert advice in caught.value.hint


def test_an_unknown_store() -> None:
    """Another scheme is that of an installed store, or an error."""
    with pytest.raises(BadRequest):
        open_store("nfs://volume", SourceOptions())
