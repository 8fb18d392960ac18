"""Files of tokens: cut into windows, counted from their sizes, refused where they are something else."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard
from feedd.formats import format_registry as registry
from feedd.formats.tokens import LLMC, NPY, RAW, TokenWindows, kind_of, window_count, with_windows
from tests.budget import budget

HEADS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def raw(tokens: np.ndarray) -> bytes:
    """As nanoGPT's prepare.py writes it."""
    return tokens.tobytes()


def llmc(tokens: np.ndarray) -> bytes:
    """As llm.c's data_common.py writes it."""
    head = np.zeros(256, np.int32)
    head[:2], head[2] = HEADS[tokens.dtype.name], len(tokens)
    return head.tobytes() + tokens.tobytes()


def npy(tokens: np.ndarray) -> bytes:
    """As numpy writes it."""
    file = io.BytesIO()
    np.save(file, tokens)
    return file.getvalue()


WRITERS = {RAW: raw, LLMC: llmc, NPY: npy}


def windows(kind: str, data: bytes, cut: TokenWindows) -> list[list[int]]:
    """Follow the index back to tokens."""
    index = registry.get(with_windows(kind, cut)).index(memoryview(data), "s3://b/t.bin")
    spans = zip(index.starts[0].tolist(), index.sizes[0].tolist(), strict=True)
    assert index.sample_count == window_count(kind, len(data), cut)
    return [np.frombuffer(data[start : start + size], cut.dtype).tolist() for start, size in spans]


def expected(tokens: np.ndarray, cut: TokenWindows) -> list[list[int]]:
    """Cut by hand, one after another."""
    found, at, seen = [], 0, 0
    while at + cut.count <= len(tokens):
        found.append(tokens[at : at + cut.count].tolist())
        seen, at = at + cut.count, at + cut.stride
    if cut.last == "pad" and at < len(tokens) and len(tokens) > seen:
        found.append(tokens[at:].tolist())
    return found


@settings(max_examples=budget(150), deadline=None)
@given(
    kind=st.sampled_from([RAW, LLMC, NPY]),
    dtype=st.sampled_from(["uint16", "uint32"]),
    length=st.integers(0, 60),
    count=st.integers(1, 20),
    stride=st.integers(1, 25),
    last=st.sampled_from(["drop", "pad"]),
)
def test_windows_are_those_cut_by_hand(kind: str, dtype: str, length: int, count: int, stride: int, last: str) -> None:
    """Every window holds the tokens it should, and their number follows from the file's size."""
    tokens = np.arange(1000, 1000 + length).astype(dtype)
    cut = TokenWindows(dtype, count, stride, last)  # type: ignore[arg-type]  # one of the two
    assert windows(kind, WRITERS[kind](tokens), cut) == expected(tokens, cut)


def test_inputs_and_targets_cover_every_token_once() -> None:
    """At a stride of one less than the window, each token but the first is a target exactly once."""
    tokens = np.arange(1, 42, dtype=np.uint16)
    cut = TokenWindows("uint16", 9, 8)
    targets = [token for window in windows(RAW, raw(tokens), cut) for token in window[1:]]
    assert targets == tokens[1:].tolist()


def test_what_a_file_is_not_is_said() -> None:
    """A header read as tokens, another type, another number of tokens, half a token: each is refused by name."""
    tokens, cut = np.arange(100, dtype=np.uint16), TokenWindows("uint16", 9, 8)
    wide = TokenWindows("uint32", 9, 8)
    for kind, data, how, message in (
        (RAW, llmc(tokens), cut, "llm.c's header"),
        (RAW, raw(tokens) + b"x", cut, "whole number"),
        (LLMC, raw(tokens), cut, "llm.c's header"),
        (LLMC, llmc(tokens)[:-2], cut, "number of tokens"),
        (LLMC, llmc(tokens), wide, "uint32"),
        (NPY, npy(tokens), wide, "uint32"),
        (NPY, npy(tokens.astype(">u2")), cut, "uint16"),
        (NPY, npy(tokens.reshape(10, 10)), cut, "one dimension"),
        (NPY, raw(tokens), cut, "npy"),
    ):
        with pytest.raises(BadShard, match=message):
            windows(kind, data, how)
    with pytest.raises(BadShard, match="recipe") as caught:
        registry.get(RAW).index(memoryview(raw(tokens)), "u")
    assert "tokens:uint16:2049" in caught.value.hint


@settings(max_examples=budget(150), deadline=None)
@given(data=st.data(), kind=st.sampled_from([RAW, LLMC, NPY]))
def test_broken_bytes_are_windows_or_refused(data: st.DataObject, kind: str) -> None:
    """Whatever bytes there are, all windows lie inside, or the file is refused."""
    good = bytearray(WRITERS[kind](np.arange(50, dtype=np.uint16)))
    for _ in range(data.draw(st.integers(0, 4))):
        good[data.draw(st.integers(0, min(len(good) - 1, 140)))] = data.draw(st.integers(0, 255))
    broken = bytes(good[: data.draw(st.integers(0, len(good)))])
    cut = TokenWindows("uint16", data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), "pad")
    try:
        index = registry.get(with_windows(kind, cut)).index(memoryview(broken), "u")
    except BadShard:
        return
    assert (index.starts >= 0).all()
    assert (index.starts + index.sizes <= len(broken)).all()
    assert (index.sizes > 0).all()


@pytest.mark.parametrize(
    ("named", "name", "kind"),
    [
        ("", "train.bin", RAW),
        ("", "x/VAL.NPY", ""),
        ("", "chunk-0-12.bin", ""),
        ("", "a.tar", ""),
        (LLMC, "a.bin", LLMC),
        (NPY, "a.npy", NPY),
        ("tar", "a.bin", ""),
    ],
)
def test_names_tell_files_of_tokens(named: str, name: str, kind: str) -> None:
    """A format that was named goes before an extension; LitData's chunks are none."""
    assert kind_of(named, f"s3://b/{name}") == kind
