"""Whether a listing holds several splits of a dataset: training and validation data that are read together. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from feedd.notices import EXAMPLES_MAX, Amount, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.values import ObjectRef

_TRAIN: Final = frozenset({"train", "training"})
_NAMES: Final = re.compile(r"(?:^|/)(train|training|val|valid|validation|dev|test|testing|eval)(?=[-_./]|$)")


def with_one_split(refs: Sequence[ObjectRef], base: str) -> dict[NoticeKind, Amount]:
    """Return shards named after other splits than training, if there are training shards too.

    Args:
        refs: shards and packs of samples that a URL names.
        base: the folder below which names are examined.
    """
    if not any("train" in ref.key for ref in refs):
        return {}
    trains = False
    others: list[ObjectRef] = []
    for ref in refs:
        found = _NAMES.search(ref.key, max(0, len(base) - 1))
        if found is None:
            continue
        if found[1] in _TRAIN:
            trains = True
        else:
            others.append(ref)
    if not trains or not others:
        return {}
    size_bytes = sum(ref.size_bytes for ref in others)
    return {NoticeKind.SPLITS_TOGETHER: Amount(len(others), size_bytes, tuple(r.key for r in others[:EXAMPLES_MAX]))}
