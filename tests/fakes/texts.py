"""A tokenizer whose ids can be counted on one's fingers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def word_tokenizer(path: Path, words: Sequence[str], *, marks: bool = False) -> None:
    """Write a tokenizer of whole words: 0 is what is unknown, then the words; with ``marks`` 100 and 101 around."""
    vocabulary = {"?": 0} | {word: number for number, word in enumerate(words, start=1)}
    if marks:
        vocabulary |= {"<": 100, ">": 101}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    if marks:
        tokenizer.post_processor = TemplateProcessing(single="< $A >", special_tokens=[("<", 100), (">", 101)])
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
