"""Text to ids, by files that the operator offers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from feedd.codecs.codec_registry import make
from feedd.errors import BadRecipe, BadSample, Unsupported
from feedd.recipe import extras, tokenizers
from feedd.recipe.recipe import needs_measure, parse_field, spec_of
from feedd.values import FieldKind
from tests.fakes.texts import word_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

WORDS = ["one", "two", "three", "four"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Offer two tokenizers."""
    offered = tmp_path / "offered"
    word_tokenizer(offered / "plain.json", WORDS)
    word_tokenizer(offered / "marked.json", WORDS, marks=True)
    word_tokenizer(tmp_path / "secret.json", WORDS)
    with tokenizers.offered(offered):
        yield offered


def recipe(name: str = "plain.json", **options: object) -> str:
    """Return the long form."""
    return json.dumps({"decode": "tokenize", "tokenizer": name, **options})


def decoded(text: bytes, name: str = "plain.json", **options: object) -> NDArray[Any]:
    """Tokenize one text into a row of the shape that is measured."""
    field = parse_field("txt", recipe(name, **options))
    codec, spec = make(field), spec_of(field)
    shape = codec.measure(memoryview(text))
    assert needs_measure(field) == (spec.kind is FieldKind.RAGGED)
    out = np.full(shape, 55, spec.dtype)
    codec.decode(memoryview(text).toreadonly(), out, 0)
    return out


def test_words_become_ids() -> None:
    """As many as there are; what is not in the vocabulary is what the tokenizer says; nothing is nothing."""
    assert decoded(b"two one two").tolist() == [2, 1, 2]
    assert decoded("vier four ü".encode()).tolist() == [0, 4, 0]
    assert decoded(b"").tolist() == []
    assert decoded(b"one", dtype="uint32").dtype == np.uint32


def test_special_tokens_can_be_left_out() -> None:
    """They are the tokenizer's own, and stay where text is cut."""
    assert decoded(b"one two", "marked.json").tolist() == [100, 1, 2, 101]
    assert decoded(b"one two", "marked.json", special=False).tolist() == [1, 2]
    assert decoded(b"one two three four", "marked.json", max_length=4).tolist() == [100, 1, 2, 101]


def test_rows_are_cut_and_padded() -> None:
    """To max_length; with an id to pad with all rows are alike."""
    assert decoded(b"one two three", max_length=2).tolist() == [1, 2]
    assert decoded(b"one", max_length=3).tolist() == [1]
    assert decoded(b"one", max_length=3, fill=7).tolist() == [1, 7, 7]
    assert decoded(b"one two three four", max_length=3, fill=7).tolist() == [1, 2, 3]
    assert spec_of(parse_field("txt", recipe(max_length=3, fill=0))).shape == (3,)


def test_an_end_is_put_behind_each_text() -> None:
    """Within max_length, and behind the tokenizer's own special tokens."""
    assert decoded(b"one two", end=9).tolist() == [1, 2, 9]
    assert decoded(b"", end=9).tolist() == [9]
    assert decoded(b"one two three", end=9, max_length=2).tolist() == [1, 9]
    assert decoded(b"one", "marked.json", end=9).tolist() == [100, 1, 101, 9]
    assert decoded(b"one two", end=9, max_length=4, fill=7).tolist() == [1, 2, 9, 7]
    assert decoded(b"one two", end=9, max_length=1).tolist() == [9]


def test_ids_are_the_librarys_own() -> None:
    """What leaves positions out makes the same ids, cut and marked alike."""
    for name in ("plain.json", "marked.json"):
        library = Tokenizer.from_str(tokenizers.read(name).decode())
        for text in ("one two", "", "four xyz three ü \U0001f600 one " * 9):
            assert decoded(text.encode(), name).tolist() == library.encode(text).ids


def test_what_is_no_text_is_a_bad_sample() -> None:
    """Bytes that are not UTF-8, and texts beyond all measure."""
    for data in (b"one \xff", b"a" * (16 << 20) + b"b"):
        with pytest.raises(BadSample, match=r"expected .* got"):
            decoded(data)
    codec = make(parse_field("txt", recipe()))
    with pytest.raises(BadSample, match="tokens, got 2"):
        codec.decode(memoryview(b"one two"), np.empty(3, np.int32), 0)


@pytest.mark.parametrize("name", ["../secret.json", "/etc/passwd", "", ".", "..", "none.json", "plain.json/", "a/b"])
def test_only_offered_files_are_opened(name: str) -> None:
    """A name is a name: no path leads out of the folder, and what is refused hears what there is."""
    with pytest.raises(BadRecipe, match=r"one of the tokenizers marked\.json, plain\.json, got"):
        parse_field("txt", recipe(name))


def test_nothing_is_offered_unless_the_operator_says_so() -> None:
    """Without a folder the hint names the option; leaving the context takes the offer back."""
    with tokenizers.offered(None):
        assert tokenizers.VARIABLE not in os.environ
        with pytest.raises(BadRecipe, match=r"decode\.tokenizers"):
            parse_field("txt", recipe())
    assert parse_field("txt", recipe())


def test_another_file_is_another_recipe(folder: Path) -> None:
    """The recipe, and with it the fingerprint, holds what the file is; a worker refuses one that changed since."""
    before = parse_field("txt", recipe())
    assert before == parse_field("txt", recipe())
    word_tokenizer(folder / "plain.json", list(reversed(WORDS)))
    with pytest.raises(BadRecipe, match="has changed since"):
        make(before)
    after = parse_field("txt", recipe())
    assert after != before
    assert make(after)


def test_what_is_no_tokenizer_is_said(folder: Path) -> None:
    """A file that the library does not take is a BadRecipe, when a worker first meets it."""
    (folder / "broken.json").write_text("{}")
    with pytest.raises(BadRecipe, match="is not a valid tokenizer"):
        make(parse_field("txt", recipe("broken.json")))


@pytest.mark.parametrize(
    "options", [{"max_length": 0}, {"fill": 1}, {"max_length": 2, "fill": -1}, {"dtype": "uint16"}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """A BadRecipe that lists what tokenize takes."""
    with pytest.raises(BadRecipe, match="tokenize takes tokenizer, max_length"):
        parse_field("txt", recipe(**options))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """At open, before any worker meets a sample."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="tokenizers") as caught:
        parse_field("txt", recipe())
    assert caught.value.hint == "install feedd[text]"
