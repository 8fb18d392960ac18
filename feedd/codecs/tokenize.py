"""The codec ``tokenize``: text to token ids, by Hugging Face's tokenizers and a file that the operator provides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tokenizers as library

from feedd.codecs.json_values import JsonPath
from feedd.errors import BadRecipe, BadSample
from feedd.recipe import tokenizers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from feedd.recipe.text_params import TokenizeParams
    from feedd.values import TensorSpec

_TEXT_BYTES_MAX: Final = 16 << 20


class TokenizeCodec:
    """Codec of ``tokenize``.

    Raises:
        BadRecipe: the tokenizer is not available, is invalid, or has changed since the dataset was opened.
    """

    def __init__(self, params: TokenizeParams) -> None:
        self._params = params
        self._path = JsonPath(params.key) if params.key else None  # without a key, the document itself is the text
        data = tokenizers.read(params.tokenizer)
        if params.digest and tokenizers.digest_of(data) != params.digest:
            raise BadRecipe(
                f"the tokenizer {params.tokenizer!r} has changed since the dataset was opened",
                hint="open the dataset again",
                stage="decode",
            )
        try:
            self._tokenizer = library.Tokenizer.from_buffer(data)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            if params.max_length is not None:
                self._tokenizer.enable_truncation(params.max_length - (params.end is not None))
        except Exception as error:  # the library raises no narrower class
            raise BadRecipe(
                f"{params.tokenizer!r} is not a valid tokenizer: {str(error)[:120]}", stage="decode"
            ) from error

    def spec(self, name: str) -> TensorSpec:
        """DENSE with ``fill``, else RAGGED."""
        return self._params.spec(name)

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the number of tokens, which takes as long as tokenizing.

        Raises:
            BadSample: not UTF-8 text, or too long.
        """
        if not self._params.measured:
            return self.spec("").shape
        return (len(self._ids(data)),)

    def produce(self, data: memoryview) -> NDArray[Any]:
        """Return all ids; a value measured this way need not be decoded again.

        Raises:
            BadSample: as ``measure``.
        """
        return self._ids(data).astype(self._params.dtype, copy=False)

    def decode(self, data: memoryview, out: NDArray[Any], seed: int) -> None:  # noqa: ARG002 - the seam's name
        """Write the ids into ``out``, then the padding.

        Raises:
            BadSample: not UTF-8 text, too long, or the token count differs from ``out``.
        """
        ids = self._ids(data)
        if out.ndim != 1 or len(ids) > len(out) or (self._params.fill is None and len(ids) != len(out)):
            raise BadSample(f"expected {list(out.shape)} tokens, got {len(ids)}")
        out[: len(ids)] = ids
        if self._params.fill is not None:
            out[len(ids) :] = self._params.fill

    def _ids(self, data: memoryview) -> NDArray[np.uint32]:
        if len(data) > _TEXT_BYTES_MAX:
            raise BadSample(f"expected at most {_TEXT_BYTES_MAX} bytes of text, got {len(data)}")
        text = _utf8(data) if self._path is None else self._path.text(data)
        try:
            # The fast method skips the tokens' positions in the text, which saves a sixth of the work.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=self._params.special)
        except Exception as error:  # the library raises no narrower class
            raise BadSample(f"expected text that the tokenizer accepts, got an error: {str(error)[:120]}") from error
        ids = encoding.ids
        if self._params.end is not None:
            ids.append(self._params.end)
        return np.array(ids, np.uint32)


def _utf8(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadSample(f"expected UTF-8 text, got byte {data[error.start]:#04x} at {error.start}") from error
