"""The page on recipes names everything there is, and its examples work."""

from __future__ import annotations

import re
from typing import Final

import pytest

from feedd.recipe.audio_params import AudioParams
from feedd.recipe.params import ImageParams
from feedd.recipe.recipe import parse_field, spec_of
from feedd.recipe.text_params import TokenizeParams
from feedd.recipe.transform_params import FOR_IMAGES, FOR_NUMBERS
from tests.tidy.tree import ROOT

PAGE: Final = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
_BLOCKS: Final = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES: Final = [text for text in _BLOCKS if '"tokenizer"' not in text]  # that one needs a file: tests/docs reads it


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_recipes(text: str) -> None:
    """Each is understood as it stands."""
    assert spec_of(parse_field("x", text))


def test_every_transform_and_option_is_named() -> None:
    """A transform or an option that nobody can read about is none."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for name, kind in (FOR_IMAGES | FOR_NUMBERS).items():
        lines = [line for line in PAGE.splitlines() if f"`{name}`" in line]
        for option in kind.__struct_fields__:
            assert any(f"`{option}`" in line for line in lines), f"{name}: {option}"
        assert lines, name
    for option in (*ImageParams.__struct_fields__, *AudioParams.__struct_fields__, *TokenizeParams.__struct_fields__):
        assert any(line.startswith(f"| `{option}` |") for line in rows), option
    assert len(EXAMPLES) >= 4
