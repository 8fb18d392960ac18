"""What torch.save writes, against torch itself; and what would have to be unpickled is refused."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedd.errors import BadShard, Unsupported
from feedd.formats.format_registry import format_for, get
from feedd.formats.tensor_pickle import NotPlainError, load
from tests.budget import budget
from tests.fuzz.judge import check_index
from tests.unit.formats.test_strided import read

KINDS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32)


def saved(held: Any, **options: Any) -> bytes:
    """Return a file."""
    sink = io.BytesIO()
    torch.save(held, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_of_every_type(protocol: int) -> None:
    """Rows of all types that NumPy has, too, by every protocol of pickles; bfloat16 is said to be that."""
    tensors = {str(kind).rpartition(".")[2]: (torch.arange(24).reshape(4, 3, 2) % 2).to(kind) for kind in KINDS}
    bits = torch.arange(4, dtype=torch.int16)
    data = saved(tensors | {"bf": bits.view(torch.bfloat16)}, pickle_protocol=protocol)
    found = read("torch", data)
    for name, tensor in tensors.items():
        assert found[name] == tensor.reshape(4, 6).tolist(), name
    assert found["bf"] == [[number] for number in bits.tolist()]
    index = get("torch").index(memoryview(data), "s3://b/a.pt")
    assert index.encoding_of(index.fields.index("float32")) == "float32[3,2]"
    assert index.encoding_of(index.fields.index("bf")) == "bfloat16"


def test_views_are_read_where_they_lie() -> None:
    """Slices of rows and columns' beginnings, one row repeated, several tensors in one storage."""
    base = torch.arange(40, dtype=torch.int32).reshape(10, 4)
    held = {"even": base[::2], "head": base[2:7, :3], "same": base[3].expand(5, 4), "flat": base.view(-1)[5:10]}
    found = read("torch", saved(held))
    for name, tensor in held.items():
        assert found[name] == tensor.reshape(5, -1).tolist(), name


@pytest.mark.parametrize(
    ("held", "fields"),
    [
        (torch.ones(3, 2), ["data"]),
        ((torch.ones(3), torch.zeros(3, 1)), ["0", "1"]),
        (OrderedDict(a=torch.ones(3)), ["a"]),
        ({"a": torch.nn.Parameter(torch.ones(3, 2)), "epoch": 3, "lr": 0.1, "of": None, "n": [1, {"b": -7}]}, ["a"]),
        (torch.nn.Linear(2, 3).state_dict(), ["weight", "bias"]),
        ({"x": torch.ones(0, 2), "scalar": torch.tensor(1.0)}, ["x"]),
    ],
    ids=["tensor", "tuple", "ordered", "mixed", "state", "empty"],
)
def test_what_holds_tensors(held: Any, fields: list[str]) -> None:
    """One tensor, lists and dicts of them; what else a dict holds is left out."""
    index = get("torch").index(memoryview(saved(held)), "s3://b/a.pt")
    assert list(index.fields) == fields


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("unpickled",)


def _without(name: str) -> bytes:
    source, sink = zipfile.ZipFile(io.BytesIO(saved({"a": torch.ones(3)}))), io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for info in source.infolist():
            if not info.filename.endswith(name):
                archive.writestr(info.filename, source.read(info))
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (saved({"a": torch.ones(3), "b": _Evil()}), "print"),
        (saved(torch.nn.Linear(2, 3)), "Linear"),
        (saved({"a": torch.ones(3), "b": torch.ones(4)}), "a row per sample"),
        (saved({"a": torch.ones(3, 4).t()}), "contiguous"),
        (saved({"a": torch.ones(3, 4, 2).transpose(1, 2)}), "contiguous"),
        (saved({"a": torch.ones(3, dtype=torch.complex64)}), "ComplexFloatStorage"),
        (saved({"a": torch.eye(3).to_sparse()}), "_get_layout"),
        (saved({"a": 1}), "tensors with rows"),
        (saved(torch.ones(3), _use_new_zipfile_serialization=False), "since 1.6"),
        (pickle.dumps({"a": 1}), "since 1.6"),
        (_without("data/0"), "the numbers of 'a'"),
        (_without("data.pkl"), "one data.pkl"),
        (b"", "since 1.6"),
    ],
    ids=[f"case{number}" for number in range(13)],
)
def test_everything_else_is_refused(data: bytes, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Code is never run, models are none of ours, and nothing is guessed."""
    with pytest.raises(BadShard, match=why):
        get("torch").index(memoryview(data), "s3://b/a.pt")
    assert "unpickled" not in capsys.readouterr().out


def test_names_choose_it() -> None:
    """By ending; what has another name is told how to be named."""
    assert format_for("s3://b/x.pt") == format_for("s3://b/x.pth.gz") == "torch"
    with pytest.raises(Unsupported, match=r"name it \.pt"):
        get("auto").index(memoryview(saved({"a": torch.ones(3)})), "s3://b/x")


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02" + b"]" + b"2" * 3 + b".",  # DUP, which torch.save does not write
        b"K\x01" + b"q\x00" + b"h\x00\x86q\x00" * 60 + b"}h\x00K\x01s.",  # a tuple that takes for ever to hash
        b"(" * 1000,
        b"}(K\x01u.",
        b"K\x01K\x02e.",
        b"cos\nsystem\nX\x01\0\0\0a\x85R.",
        b"\x8d" + struct.pack("<Q", 1 << 60),
    ],
    ids=[f"program{number}" for number in range(7)],
)
def test_programs_that_are_none_of_these(program: bytes) -> None:
    """Instructions nobody knows, keys that are no text, ends in the middle: refused, at once."""
    with pytest.raises(NotPlainError):
        load(program)


GOOD = saved({"a": torch.arange(12, dtype=torch.float32).reshape(4, 3), "b": torch.arange(4)})


@settings(max_examples=budget(300), deadline=None)
@given(at=st.integers(0, len(GOOD) - 1), bytes_=st.binary(max_size=6), cut=st.integers(0, 6))
def test_damage_is_refused_or_harmless(at: int, bytes_: bytes, cut: int) -> None:
    """Changed anywhere: an index within the file, or BadShard."""
    data = GOOD[:at] + bytes_ + GOOD[at + cut :]
    with suppress(BadShard):
        check_index(get("torch").index(memoryview(data), "s3://b/a.pt"), len(data))


def test_numbers_are_torchs() -> None:
    """A check of the checks: what is read is what torch reads."""
    (loaded,) = torch.load(io.BytesIO(saved([torch.randn(4, 3)])), weights_only=True)
    np.testing.assert_array_equal(read("torch", saved([loaded]))["0"], loaded.numpy())
