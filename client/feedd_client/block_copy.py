"""One copy for many tensors: tensors that lie side by side in host memory cross the bus together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GAP_BYTES: Final = 4096  # between two fields: their alignment, and short texts
_SMALL_SHARE: Final = 64  # a field below this share of a block gets memory of its own


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of host memory that holds several tensors.

    Attributes:
        memory: addresses of the piece.
        tensors: the tensors in it.
    """

    memory: range
    tensors: Sequence[torch.Tensor]

    def copied(self, copy: Callable[[range], torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors on the device, after one call of ``copy``.

        Small tensors get memory of their own: a trainer that keeps labels must not keep the images beside them.

        Args:
            copy: starts the copy of these addresses, and returns them on the device as uint8.
        """
        size_bytes = len(self.memory)
        there = copy(self.memory)
        made = []
        for tensor in self.tensors:
            at, own_bytes = tensor.data_ptr() - self.memory.start, bytes_of(tensor)
            view = there[at : at + own_bytes].view(tensor.dtype).view(tensor.shape)
            made.append(view.clone() if own_bytes * _SMALL_SHARE < size_bytes else view)
        return made


def blocks_of(tensors: Sequence[torch.Tensor], memory: range) -> list[Block]:
    """Return blocks of the contiguous tensors that lie in ``memory``, with gaps of at most a page between neighbours.

    A block holds at least two tensors, and each at a multiple of its element size from the block's start.
    """
    inside = sorted((one for one in tensors if one.data_ptr() in memory and one.numel()), key=torch.Tensor.data_ptr)
    found: list[Block] = []
    for tensor in inside:
        start = tensor.data_ptr()
        end = start + bytes_of(tensor)
        last = found[-1] if found else None
        near = last is not None and start - last.memory.stop <= _GAP_BYTES
        if last is None or not near or (start - last.memory.start) % tensor.element_size():
            found.append(Block(range(start, end), [tensor]))
        else:
            found[-1] = Block(range(last.memory.start, max(end, last.memory.stop)), [*last.tensors, tensor])
    return [block for block in found if len(block.tensors) > 1]


def bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
