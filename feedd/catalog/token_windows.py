"""Files of tokens in a dataset: how the recipe cuts them, and so how many samples each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRecipe, Unsupported
from feedd.formats.tokens import RAW, TokenWindows, kind_of, token_count, window_count, with_cut
from feedd.notices import Amount, NoticeKind
from feedd.recipe.params import TokensParams, params_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.values import FieldRecipe, ObjectRef

Cuts = tuple[TokenWindows | None, ...]
"""Of each source of a dataset; None: its recipe cuts nothing."""


def cut_of(recipe: Sequence[FieldRecipe]) -> TokenWindows | None:
    """Return how a recipe would cut files of tokens.

    Raises:
        BadRecipe: it would do so in two ways.
    """
    found: dict[TokenWindows, str] = {}
    for field in recipe:
        params = params_of(field)
        if isinstance(params, TokensParams):
            found.setdefault(TokenWindows(params.dtype, params.count, params.step, params.last), field.name)
    if len(found) > 1:
        names = " and ".join(found.values())
        raise BadRecipe("expected one way to cut tokens, got several", object=names, stage="decode")
    return next(iter(found), None)


@dataclass(frozen=True, slots=True)
class CutFiles:
    """The files of tokens of a dataset, by dataset index.

    Attributes:
        readers: their formats, cut included.
        counts: samples of each.
        dtypes: of their tokens, where the files do not say so themselves.
        left_out: files of which tokens are in no sample. Amounts count files, and the bytes of those tokens.
    """

    readers: dict[int, str]
    counts: dict[int, int]
    dtypes: dict[int, str]
    left_out: dict[NoticeKind, Amount]

    def add(self, number: int, kind: str, ref: ObjectRef, cut: TokenWindows) -> None:
        """Count a file's samples, and the tokens that are in none."""
        self.counts[number] = window_count(kind, ref.size_bytes, cut)
        if kind == RAW:
            self.dtypes[number] = cut.dtype
        left = cut.left(token_count(kind, ref.size_bytes, cut))
        if left:
            notice = NoticeKind.CUT_TAILS if self.counts[number] else NoticeKind.SHORT_FILES
            amount = self.left_out.get(notice, Amount())
            text = f"{ref.key}: {left} tokens"
            self.left_out[notice] = amount.plus(Amount(1, left * cut.item_bytes, (text,)))


def cut_files(refs: Sequence[ObjectRef], firsts: Sequence[int], cuts: Cuts, named: Mapping[int, str]) -> CutFiles:
    """Return the files of tokens of a dataset.

    Args:
        refs: the objects.
        firsts: the first dataset index of each source.
        cuts: of each source.
        named: formats that were named or told, by dataset index.
    """
    files = CutFiles({}, {}, {}, {})
    for cut, first, end in zip(cuts, firsts, [*firsts[1:], len(refs)], strict=True):
        if cut is None:
            continue
        names: dict[str, str] = {}  # one text for all that are read alike
        for number in range(first, end):
            ref = refs[number]
            kind = kind_of(named.get(number, ""), ref.url)
            if not kind:
                continue
            if ref.form:
                hint = "unpack it: its windows are counted by its size"
                raise Unsupported("expected a file of tokens as it is, got a packed one", object=ref.url, hint=hint)
            files.readers[number] = names.setdefault(kind, with_cut(kind, cut))
            files.add(number, kind, ref, cut)
    return files
