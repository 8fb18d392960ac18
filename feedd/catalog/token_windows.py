"""Files of tokens in a dataset: how recipes split them into windows, and so their numbers of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRecipe, Unsupported
from feedd.formats.tokens import RAW, TokenWindows, kind_of, token_count, window_count, with_windows
from feedd.notices import Amount, NoticeKind
from feedd.recipe.params import TokensParams, params_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.values import FieldRecipe, ObjectRef

Cuts = tuple[TokenWindows | None, ...]
"""For each source of a dataset: the windows of its recipe; None: the recipe splits no tokens."""


def windows_of(recipe: Sequence[FieldRecipe]) -> TokenWindows | None:
    """Return the windows into which a recipe splits files of tokens; None: it does not.

    Raises:
        BadRecipe: the recipe has several different windows.
    """
    found: dict[TokenWindows, str] = {}
    for field in recipe:
        params = params_of(field)
        if isinstance(params, TokensParams):
            found.setdefault(TokenWindows(params.dtype, params.count, params.step, params.last), field.name)
    if len(found) > 1:
        names = " and ".join(found.values())
        raise BadRecipe("expected one way to split tokens, got several", object=names, stage="decode")
    return next(iter(found), None)


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The files of tokens of a dataset, by dataset index.

    Attributes:
        readers: their formats, including the windows.
        counts: samples of each file.
        dtypes: dtype of their tokens, if the files do not name it themselves.
        left_out: files with tokens that are in no sample. Amounts count files, and the bytes of these tokens.
    """

    readers: dict[int, str]
    counts: dict[int, int]
    dtypes: dict[int, str]
    left_out: dict[NoticeKind, Amount]

    def add(self, number: int, kind: str, ref: ObjectRef, cut: TokenWindows) -> None:
        """Count a file's samples, and its tokens that are in no sample."""
        self.counts[number] = window_count(kind, ref.size_bytes, cut)
        if kind == RAW:
            self.dtypes[number] = cut.dtype
        left = cut.left(token_count(kind, ref.size_bytes, cut))
        if left:
            notice = NoticeKind.CUT_TAILS if self.counts[number] else NoticeKind.SHORT_FILES
            amount = self.left_out.get(notice, Amount())
            text = f"{ref.key}: {left} tokens"
            self.left_out[notice] = amount.plus(Amount(1, left * cut.item_bytes, (text,)))


def token_files(refs: Sequence[ObjectRef], firsts: Sequence[int], cuts: Cuts, named: Mapping[int, str]) -> TokenFiles:
    """Return the files of tokens of a dataset.

    Args:
        refs: the objects.
        firsts: the first dataset index of each source.
        cuts: windows of each source.
        named: formats named by URLs or sidecars, by dataset index.
    """
    files = TokenFiles({}, {}, {}, {})
    for cut, first, end in zip(cuts, firsts, [*firsts[1:], len(refs)], strict=True):
        if cut is None:
            continue
        names: dict[str, str] = {}  # shares one text among files of the same format
        for number in range(first, end):
            ref = refs[number]
            kind = kind_of(named.get(number, ""), ref.url)
            if not kind:
                continue
            if ref.conversion is not None:
                hint = "decompress it, because its windows are counted by its size"
                raise Unsupported(
                    "expected an uncompressed file of tokens, got a compressed one", object=ref.url, hint=hint
                )
            files.readers[number] = names.setdefault(kind, with_windows(kind, cut))
            files.add(number, kind, ref, cut)
    return files
