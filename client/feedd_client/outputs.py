"""What the trainer gets of a copied batch: the batch itself, or its values at addresses that never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from feedd_client.containers import leaves, map_leaves, record_stream
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from feedd_client.events import DeviceSlot
    from feedd_client.streams import DeviceStreams


class Outputs:
    """Hands copied batches over to the trainer's current stream.

    Args:
        streams: streams of the device; None: it has none.
    """

    def __init__(self, streams: DeviceStreams | None) -> None:
        self._streams = streams

    def handed_over(self, batch: Any, slot: DeviceSlot) -> Any:  # noqa: ANN401 - the source's batch type
        """Return the batch for the trainer; called in the trainer's thread.

        Raises:
            BadOptionError: the batch does not fit.
        """
        if self._streams is None:
            return self._given(batch)
        # looked up per batch, because the trainer may have switched streams
        stream = self._streams.current_stream()
        slot.taken.record(stream)
        assert slot.ready is not None
        stream.wait_event(slot.ready)
        record_stream(batch, stream)  # allocated on the copy stream, freed on the trainer's stream
        return self._given(batch)

    def _given(self, batch: Any) -> Any:  # noqa: ANN401 - see above
        return batch


class StaticOutputs(Outputs):
    """Copies each batch to tensors that the first batch decided; a batch is valid until the next.

    A tensor with fewer rows than the first batch's fills the first rows. The trainer gets a view of these rows.
    """

    def __init__(self, streams: DeviceStreams | None) -> None:
        super().__init__(streams)
        self._tensors: list[torch.Tensor] | None = None
        self._stream: Any = None  # the stream that the trainer's latest batch was given on

    def _given(self, batch: Any) -> Any:  # noqa: ANN401 - see above
        found = [_tensor(leaf) for leaf in leaves(batch)]
        if self._streams is not None:
            stream, before = self._streams.current_stream(), self._stream
            if before is not None and before != stream:
                stream.wait_stream(before)  # work on the latest batch may still be queued there
            self._stream = stream
        if self._tensors is None:
            # preserves strides: channels-last images stay so
            self._tensors = [torch.empty_like(one) for one in found]
        if len(found) != len(self._tensors):
            raise BadOptionError(
                f"expected {len(self._tensors)} tensors as in the first batch, got {len(found)}", object="static"
            )
        given = iter([_filled(static, one) for static, one in zip(self._tensors, found, strict=True)])
        return map_leaves(batch, lambda _: next(given))


def _filled(static: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Copy ``values`` to the first rows of ``static``, and return these rows.

    Raises:
        BadOptionError: the values do not fit.
    """
    rows = values.shape[0] if values.ndim else 0
    fits = values.dtype == static.dtype and values.shape[1:] == static.shape[1:] and values.ndim == static.ndim
    if not fits or (values.ndim and rows > static.shape[0]):
        raise BadOptionError(
            f"expected {static.dtype} {list(static.shape)} as in the first batch, or fewer rows,"
            f" got {values.dtype} {list(values.shape)}",
            object="static",
            hint="pad the field in its recipe, or leave static=True out",
        )
    target = static[:rows] if values.ndim else static
    target.copy_(values, non_blocking=True)
    return target


def _tensor(leaf: object) -> torch.Tensor:
    if not isinstance(leaf, torch.Tensor):
        raise BadOptionError(
            f"expected tensors and containers of tensors, got {type(leaf).__name__}, which moves itself",
            object="static",
        )
    return leaf
