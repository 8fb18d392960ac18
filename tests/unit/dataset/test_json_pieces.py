"""JSON of strangers in pieces: what is read is what is there, wherever a piece ends, and no piece is large."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.dataset import json_pieces
from feedd.dataset.index_file import Row, render, rows_of
from feedd.dataset.json_pieces import ELEMENT_BYTES_MAX, PIECE_BYTES, elements, find, items, members, value
from feedd.dataset.sidecars import ForeignCounts
from tests.budget import later

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = st.text(st.sampled_from('ab\\"[]{},: é🙂'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _text(content: object, *, spaces: bool, ascii_only: bool) -> bytes:
    return json.dumps(content, indent=1 if spaces else None, ensure_ascii=ascii_only).encode()


@pytest.fixture(params=[3, later(7), 16, later(PIECE_BYTES)])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How much text is looked at at one time."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("piece_bytes")
class TestAnyPiece:
    """However small a piece is."""

    @given(content=st.lists(VALUES, max_size=8), spaces=st.booleans(), ascii_only=st.booleans())
    def test_a_list(self, content: list[object], *, spaces: bool, ascii_only: bool) -> None:
        """Its elements come as they are, in order."""
        assert list(elements(_text(content, spaces=spaces, ascii_only=ascii_only), 0, object)) == content

    @given(content=st.dictionaries(TEXTS, VALUES, max_size=8), spaces=st.booleans(), ascii_only=st.booleans())
    def test_an_object(self, content: dict[str, object], *, spaces: bool, ascii_only: bool) -> None:
        """Its members come as they are, all at a time or one by one."""
        data = _text(content, spaces=spaces, ascii_only=ascii_only)
        assert dict(items(data, object)) == content
        assert {name: value(data, at, object) for name, at in members(data)} == content

    @given(content=st.dictionaries(TEXTS, VALUES, max_size=4), data=st.data())
    def test_damage(self, content: dict[str, object], data: st.DataObject) -> None:
        """What a cut or another byte makes of it is refused, or read as the whole parser reads it."""
        text = _text(content, spaces=False, ascii_only=True)
        at = data.draw(st.integers(0, len(text) - 1))
        byte = data.draw(st.sampled_from([b"", *(bytes([one]) for one in b'"\\[]{},:1 ')]))
        damaged = text[:at] + byte + text[at + len(byte) + data.draw(st.integers(0, 2)) :]
        whole: object = None
        try:
            whole = msgspec.json.decode(damaged)
        except (msgspec.DecodeError, UnicodeDecodeError):
            whole = ValueError
        for read in (_items, _members):
            try:
                found = read(damaged)
            except ValueError:
                assert whole is ValueError or not isinstance(whole, dict)
            else:
                assert found == whole


def _items(data: bytes) -> object:
    return dict(items(data, object))


def _members(data: bytes) -> object:
    return {name: value(data, at, object) for name, at in members(data)}


@pytest.mark.parametrize("text", ["[1,]", "[,1]", "[1,,2]", "[,]", "[1", "[1}", "{}", "1", ""])
def test_what_is_no_list(text: str) -> None:
    """A list with a comma too many, or none at all, is refused."""
    with pytest.raises(ValueError, match="expected an index"):
        list(elements(text.encode(), 0, int))


def test_members_that_are_missing_or_too_many() -> None:
    """An object is asked for members it has, and has only so many."""
    assert find(b'{"a": 1, "b": [2]}', ("b",)) == {"b": 14}
    with pytest.raises(ValueError, match="without 'c'"):
        find(b'{"a": 1}', ("c",))
    many = json.dumps({str(number): 0 for number in range(5000)}).encode()
    with pytest.raises(ValueError, match="at most 4096 members"):
        find(many, ("1",))
    assert len(list(items(many, int))) == 5000


def test_an_element_is_bounded() -> None:
    """One element as long as a whole file is refused before it is parsed."""
    data = b"[[" + b"1," * ELEMENT_BYTES_MAX + b"1]]"
    with pytest.raises(ValueError, match="elements of at most"):
        list(elements(data, 0, list[int]))
    with pytest.raises(ValueError, match="values of at most"):
        value(data, 0, list[list[int]])


COUNT = 40_000
TREE = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
CONFIG = {"data_format": ["int"], "data_spec": TREE, "item_loader": "TokensLoader"}


def _mds(names: list[str]) -> dict[str, object]:
    return {"version": 2, "shards": [{"samples": 1, "raw_data": {"basename": name, "bytes": 1}} for name in names]}


def _wids(names: list[str]) -> dict[str, object]:
    return {"wids_version": 1, "shardlist": [{"url": name, "nsamples": 1, "filesize": 9} for name in names]}


def _litdata(names: list[str]) -> dict[str, object]:
    chunks = [{"chunk_bytes": 9, "chunk_size": 1, "filename": name} for name in names]
    return {"chunks": chunks, "config": CONFIG}


def _timm(names: list[str]) -> dict[str, object]:
    return {"splits": {"train": {"filenames": names, "shard_lengths": [1] * len(names)}}}


@pytest.mark.parametrize(
    ("write", "file", "each"),
    [
        (lambda names: [Row(name, 1, "e" * 32, 1) for name in names], None, 1),
        (_mds, "index.json", 1),
        (_litdata, "index.json", 2),
        (_wids, "shardindex.json", 1),
        (lambda names: dict.fromkeys(names, 1), "sizes.json", 1),
        (_timm, "_info.json", 1),
    ],
    ids=["feedd's", "MDS", "LitData", "wids", "sizes", "timm"],
)
def test_no_call_takes_a_whole_file(
    write: Callable[[list[str]], Any], file: str | None, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of counts is given to a parser in one call: each call takes a piece, whatever the file's size."""
    content = write([f"train/shard-{number:08d}.tar" for number in range(COUNT)])
    data = render(content) if file is None else json.dumps(content).encode()
    taken: list[int] = []
    plain, decoder = msgspec.json.decode, msgspec.json.Decoder

    class Decoder:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._decoder = decoder(*args, **options)

        def decode(self, text: bytes) -> Any:
            taken.append(len(text))
            return self._decoder.decode(text)

    def decode(text: bytes, **options: Any) -> Any:
        taken.append(len(text))
        return plain(text, **options)

    monkeypatch.setattr(msgspec.json, "Decoder", Decoder)
    monkeypatch.setattr(msgspec.json, "decode", decode)
    assert sum(1 for _ in (rows_of(data) if file is None else ForeignCounts(file, data))) == each * COUNT
    assert len(data) > 4 * PIECE_BYTES
    assert sum(taken) > len(data) // 2
    assert max(taken) <= PIECE_BYTES + ELEMENT_BYTES_MAX
    assert sorted(taken)[-2] <= 2 * PIECE_BYTES
