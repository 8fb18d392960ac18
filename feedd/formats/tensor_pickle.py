"""Reads tensors that torch.save wrote, without unpickling: imports, calls and builds only what is defined here.

A pickle is a program for a stack machine. This machine knows the few instructions that write dicts, lists, numbers and
tensors. Of all names in a pickle it accepts only those of tensors' storages and of torch's functions that build
tensors. It refuses everything else. It makes no copies, so its memory is bounded by the size of its input.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from feedd.recipe.low_precision import item_bytes

DTYPES: Final = {
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "BFloat16Storage": "bfloat16",
}
_LATER: Final = frozenset({"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"})
"""Dtypes without their own storage class: the tensor names them."""

_UNTYPED: Final = ("torch.storage", "UntypedStorage")
PICKLE_BYTES_MAX: Final = 16 << 20
_Kind = TypeVar("_Kind")
_MARK: Final = object()
_TENSOR: Final = ("torch._utils", "_rebuild_tensor_v2")
_TENSOR_OF: Final = ("torch._utils", "_rebuild_tensor_v3")
_PARAMETER: Final = ("torch._utils", "_rebuild_parameter")
_DICT: Final = ("collections", "OrderedDict")


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers in a member of the archive.

    Attributes:
        key: name of the member in ``data/``.
        numel: number of elements; of an untyped storage: of bytes.
    """

    dtype: str
    key: str
    numel: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor: the position of its numbers in a storage, counted in numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in the pickle: module and name."""

    where: tuple[str, str]


class NotPlainError(Exception):
    """Something other than plain tensors was found; used only inside ``formats``."""


def load(data: bytes) -> object:
    """Return the content of a pickle: dicts, lists, tuples, numbers, text and ``TensorView``.

    Raises:
        NotPlainError: the pickle holds anything else, or is broken.
    """
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error, AttributeError) as error:
        raise NotPlainError(f"a broken pickle: {type(error).__name__} {error}") from error


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """Execute all instructions; return the result."""
        while True:
            code = self._take(1)[0]
            if code == 0x2E:  # STOP
                return self._stack.pop()
            if code in _CONSTANTS:
                self._stack.append(_CONSTANTS[code])
            elif code in _NUMBERS:
                packing = _NUMBERS[code]
                self._stack.append(struct.unpack(packing, self._take(struct.calcsize(packing)))[0])
            elif code in _TEXTS:
                self._stack.append(self._take(self._number(_TEXTS[code])).decode())
            elif code in _EMPTY:
                self._stack.append(_EMPTY[code]())
            elif code in _TUPLES:
                count = _TUPLES[code]
                made = tuple(self._stack[-count:])
                if len(made) < count:
                    self._refuse("a tuple of missing values")
                self._stack[-count:] = [made]
            elif not self._keep(code) and not self._fill(code) and not self._build(code):
                self._refuse(f"instruction {code:#04x}")

    def _keep(self, code: int) -> bool:
        """Store a value in the memo, or fetch one; return whether the instruction is of this kind."""
        if code in {0x71, 0x72}:  # BINPUT, LONG_BINPUT
            self._memo[self._number("<B" if code == 0x71 else "<I")] = self._stack[-1]
        elif code == 0x94:  # MEMOIZE
            self._memo[len(self._memo)] = self._stack[-1]
        elif code in {0x68, 0x6A}:  # BINGET, LONG_BINGET
            self._stack.append(self._memo[self._number("<B" if code == 0x68 else "<I")])
        elif code == 0x80:  # PROTO
            self._take(1)
        elif code == 0x95:  # FRAME
            self._take(8)
        elif code == 0x8A:  # LONG1
            self._stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        else:
            return False
        return True

    def _fill(self, code: int) -> bool:
        """Move values from the stack into a list, dict or tuple; return whether the instruction is of this kind."""
        if code == 0x74:  # TUPLE
            self._stack.append(tuple(self._marked()))
        elif code in {0x61, 0x65}:  # APPEND, APPENDS
            items = [self._stack.pop()] if code == 0x61 else self._marked()
            self._last(list).extend(items)
        elif code in {0x73, 0x75}:  # SETITEM, SETITEMS
            pairs = [self._stack.pop(-2), self._stack.pop()] if code == 0x73 else self._marked()
            if len(pairs) % 2 or not all(type(key) in {str, int} for key in pairs[::2]):
                self._refuse("a key that is neither text nor a number, or without a value")
            self._last(dict).update(zip(pairs[::2], pairs[1::2], strict=True))
        else:
            return False
        return True

    def _build(self, code: int) -> bool:
        """Build an object that the pickle names; return whether the instruction is of this kind."""
        if code == 0x63:  # GLOBAL
            self._stack.append(_Name((self._line(), self._line())))
        elif code == 0x93:  # STACK_GLOBAL
            name, module = self._stack.pop(), self._stack.pop()
            if not isinstance(name, str) or not isinstance(module, str):
                self._refuse("a name that is not text")
            self._stack.append(_Name((module, name)))
        elif code == 0x51:  # BINPERSID
            self._stack.append(self._storage(self._stack.pop()))
        elif code in {0x52, 0x81}:  # REDUCE, NEWOBJ
            arguments, named = self._stack.pop(), self._stack.pop()
            self._stack.append(self._called(named, arguments))
        elif code == 0x62:  # BUILD: attributes of a dict, such as the versions of a model's modules
            self._stack.pop()
            self._last(dict)
        else:
            return False
        return True

    def _storage(self, told: object) -> Storage:
        if not (isinstance(told, tuple) and len(told) == 5 and told[0] == "storage" and isinstance(told[1], _Name)):
            self._refuse("an object that is not a storage")
        module, kind = told[1].where
        key, numel = told[2], told[4]
        untyped = told[1].where == _UNTYPED
        if not untyped and (module != "torch" or kind not in DTYPES):
            self._refuse(f"numbers of type {module}.{kind}")
        if not isinstance(key, str) or not _is_count(numel):
            self._refuse("a storage without name or length")
        return Storage("" if untyped else DTYPES[kind], key, numel)

    def _called(self, named: object, arguments: object) -> object:
        if not isinstance(named, _Name) or not isinstance(arguments, tuple):
            self._refuse("a call of something without a name")
        if named.where == _DICT and not arguments:
            return {}
        if named.where == _PARAMETER and arguments and isinstance(arguments[0], TensorView):
            return arguments[0]
        if named.where not in {_TENSOR, _TENSOR_OF}:
            self._refuse(".".join(named.where))
        storage, offset, shape, strides = arguments[:4]
        if named.where == _TENSOR_OF:
            storage = self._typed(storage, arguments[6])
        elif isinstance(storage, Storage) and not storage.dtype:
            self._refuse("a tensor without a type")
        counts = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
        if not isinstance(storage, Storage) or not all(map(_is_count, counts)) or len(shape) != len(strides):
            self._refuse("a tensor without a place or a shape")
        return TensorView(storage, offset, shape, strides)

    def _typed(self, storage: object, dtype: object) -> Storage:
        """Return an untyped storage as numbers of a dtype."""
        module, kind = dtype.where if isinstance(dtype, _Name) else ("", "")
        if module != "torch" or kind not in _LATER:
            self._refuse(f"numbers of type {module}.{kind}")
        if not isinstance(storage, Storage) or storage.dtype:
            self._refuse("a tensor without a place")
        return Storage(kind, storage.key, storage.numel // item_bytes(kind))

    def _last(self, kind: type[_Kind]) -> _Kind:
        last = self._stack[-1]
        if type(last) is not kind:
            self._refuse(f"{type(last).__name__} instead of {kind.__name__}")
        return last

    def _marked(self) -> list[object]:
        """Remove and return the values above the last mark; remove the mark."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                self._refuse("no mark")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            self._refuse("its end")
        self._at += count
        return taken

    def _number(self, packing: str) -> int:
        number: int = struct.unpack(packing, self._take(struct.calcsize(packing)))[0]
        return number

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at)
        return self._take(end + 1 - self._at)[:-1].decode()

    def _refuse(self, got: str) -> NoReturn:
        raise NotPlainError(got)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


_CONSTANTS: Final[dict[int, object]] = {0x4E: None, 0x88: True, 0x89: False, 0x29: (), 0x28: _MARK}
_NUMBERS: Final = {0x4B: "<B", 0x4D: "<H", 0x4A: "<i", 0x47: ">d"}  # BININT1, BININT2, BININT, BINFLOAT
_TEXTS: Final = {0x58: "<I", 0x8C: "<B", 0x8D: "<Q"}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
_EMPTY: Final[dict[int, type]] = {0x7D: dict, 0x5D: list}
_TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}
