"""Pickle bytes -> plain values. A pickle is a program; this machine knows the steps that build
values, and no step here imports or calls anything the file names.

    known class or function   made by our own code: OrderedDict, Namespace, torch's rebuilding
    other class               a `Record`: its name and what the file says of it; it does nothing
    other function            a Record for packages whose calls make data (QUIET), else a DataError

Differs from Python's own machine, which imports every name and calls it with what lies on the
stack. Steps, depth and size are bounded, and keys are scalars, so that no file costs more than
a small multiple of its length.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from weft.core.errors import DataError

MAX_STEPS = 2_000_000
"""The largest models have some hundred thousand; an empty list costs one and takes 60 bytes."""
MAX_INT = 2**128
QUIET = frozenset(("_codecs", "fairseq", "numpy", "omegaconf", "torch"))
"""Packages whose calls in a checkpoint make values: arrays, settings, random states."""

Make = Callable[[tuple[Any, ...]], Any]


@dataclass(eq=False)
class Record:
    """A thing of another program, by its name. It is never more than what is written here."""

    name: str
    args: tuple[Any, ...] | None = None
    """What it would have been made of; None: the bare class or function."""
    state: Any = None
    items: list[Any] = field(default_factory=list)


class Attributes(dict[str, Any]):
    """A Namespace: a dict that BUILD may fill."""


class Ordered(dict[Any, Any]):
    """An OrderedDict. torch hangs a list of versions on it, which nobody reads."""


class Machine:
    """Runs one pickle. `known`: what makes a value of the names we know."""

    def __init__(self, path: Path, known: Mapping[str, Make], storage: Make) -> None:
        self.path, self.known, self.storage = path, known, storage
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        """Stacks below the last mark."""
        self.memo: dict[int, Any] = {}

    def run(self, file: IO[bytes]) -> Any:
        """The value of the pickle that begins here; the file then stands behind it."""
        try:
            for count, (step, arg, _) in enumerate(pickletools.genops(file)):
                if count == MAX_STEPS:
                    self.refuse(f"has more than {MAX_STEPS} steps")
                if step.name == "STOP":
                    return self.stack.pop()
                if step.name not in STEPS:
                    self.refuse(f"uses the step {step.name}")
                STEPS[step.name](self, arg)
        except DataError:
            raise
        except (ValueError, IndexError, KeyError, OverflowError, struct.error):
            # a length beyond the end, an empty stack, a value that was never stored
            self.refuse("ends too early or is damaged")
        raise AssertionError("genops raises where no STOP comes")

    def refuse(self, why: str) -> NoReturn:
        raise DataError(f"{why}: Weft does not read this pickle. Use safetensors.", self.path)

    def push(self, value: Any) -> None:
        if isinstance(value, int) and abs(value) >= MAX_INT:
            self.refuse("holds a number of more than 128 bits")
        self.stack.append(value)

    def mark(self, arg: Any = None) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        """What was pushed since the mark."""
        found, self.stack = self.stack, self.outer.pop()
        return found

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def memoize(self, arg: Any) -> None:
        self.put(len(self.memo))

    def extend(self, values: list[Any]) -> None:
        """Add to the list on top; a record keeps what it is told."""
        top = self.stack[-1]
        if not isinstance(top, list | Record):
            self.refuse(f"appends to a {type(top).__name__}")
        (top.items if isinstance(top, Record) else top).extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Keys and values in turn, into the dict on top."""
        top, pairs = self.stack[-1], self.pairs(values)
        if isinstance(top, Record):
            top.items.extend(pairs)
        elif isinstance(top, dict):
            top.update(pairs)
        else:
            self.refuse(f"sets keys of a {type(top).__name__}")

    def pairs(self, values: list[Any]) -> list[tuple[Any, Any]]:
        if len(values) % 2 or not all(is_key(key) for key in values[::2]):
            self.refuse("has a dict whose keys are no names or numbers")
        return list(zip(values[::2], values[1::2], strict=True))

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            self.refuse("names a class by something that is no text")
        self.stack.append(Record(f"{module}.{name}"[:200]))

    def make(self, maker: Any, args: Any, is_class: bool) -> None:
        """What calling `maker` would have given, made without calling it."""
        if not isinstance(maker, Record) or maker.args is not None or not isinstance(args, tuple):
            self.refuse("calls a value")
        if maker.name in self.known:
            self.stack.append(self.known[maker.name](args))
        elif is_class or maker.name.split(".")[0] in QUIET:
            self.stack.append(Record(maker.name, args))
        else:
            self.refuse(f"would call {maker.name!r}, which is no part of a checkpoint")

    def build(self, state: Any) -> None:
        """Give the value on top its inside."""
        top = self.stack[-1]
        if isinstance(top, Record) and top.args is not None:
            top.state = state
        elif isinstance(top, Attributes) and isinstance(state, dict):
            top.update(state)
        elif not isinstance(top, Ordered):
            self.refuse(f"sets the inside of a {type(top).__name__}")


def is_key(value: Any) -> bool:
    """Scalars and records, or a tuple of them: what deeper tuples cost to hash has no bound."""
    parts = value if type(value) is tuple else (value,)
    return all(
        part is None or isinstance(part, str | bytes | int | float | Record) for part in parts
    )


def inst(m: Machine, arg: str) -> None:
    """INST: a class by name and its arguments since the mark, from before classes had types."""
    args = tuple(m.to_mark())
    m.name(*arg.split(" ", 1))
    m.make(m.stack.pop(), args, is_class=False)


def obj(m: Machine, arg: Any) -> None:
    """OBJ: the same with the class itself behind the mark."""
    maker, *args = m.to_mark()
    m.make(maker, tuple(args), is_class=False)


def new_with_names(m: Machine, arg: Any) -> None:
    names, args, maker = m.stack.pop(), m.stack.pop(), m.stack.pop()
    m.make(maker, (*args, names) if isinstance(args, tuple) else args, is_class=True)


def stack_global(m: Machine, arg: Any) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.name(module, name)


def call(m: Machine, is_class: bool) -> None:
    args, maker = m.stack.pop(), m.stack.pop()
    m.make(maker, args, is_class)


def pop(m: Machine, arg: Any) -> None:
    """The top, or the mark where it lies on top."""
    if m.stack:
        m.stack.pop()
    else:
        m.to_mark()


def pop_mark(m: Machine, arg: Any) -> None:
    m.to_mark()


def short_tuple(m: Machine, size: int) -> None:
    if len(m.stack) < size:
        raise IndexError(size)
    m.stack[-size:] = [tuple(m.stack[-size:])]


INTS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
FLOATS = ("FLOAT", "BINFLOAT")
TEXTS = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
BYTES = ("STRING", "BINSTRING", "SHORT_BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8")

STEPS: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys((*INTS, *FLOATS, *TEXTS, *BYTES), Machine.push),
    **dict.fromkeys(("PROTO", "FRAME"), lambda m, arg: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, arg: m.push(m.memo[arg])),
    "MEMOIZE": Machine.memoize,
    "NONE": lambda m, arg: m.push(None),
    "NEWTRUE": lambda m, arg: m.push(True),
    "NEWFALSE": lambda m, arg: m.push(False),
    "MARK": Machine.mark,
    "POP": pop,
    "POP_MARK": pop_mark,
    "DUP": lambda m, arg: m.push(m.stack[-1]),
    "EMPTY_TUPLE": lambda m, arg: m.push(()),
    "EMPTY_LIST": lambda m, arg: m.push([]),
    "EMPTY_DICT": lambda m, arg: m.push({}),
    "TUPLE": lambda m, arg: m.push(tuple(m.to_mark())),
    "TUPLE1": lambda m, arg: short_tuple(m, 1),
    "TUPLE2": lambda m, arg: short_tuple(m, 2),
    "TUPLE3": lambda m, arg: short_tuple(m, 3),
    "LIST": lambda m, arg: m.push(m.to_mark()),
    "DICT": lambda m, arg: m.push(dict(m.pairs(m.to_mark()))),
    "APPEND": lambda m, arg: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, arg: m.extend(m.to_mark()),
    "SETITEM": lambda m, arg: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    "SETITEMS": lambda m, arg: m.set_items(m.to_mark()),
    "GLOBAL": lambda m, arg: m.name(*arg.split(" ", 1)),
    "STACK_GLOBAL": stack_global,
    "INST": inst,
    "OBJ": obj,
    "REDUCE": lambda m, arg: call(m, is_class=False),
    "NEWOBJ": lambda m, arg: call(m, is_class=True),
    "NEWOBJ_EX": new_with_names,
    "BUILD": lambda m, arg: m.build(m.stack.pop()),
    "BINPERSID": lambda m, arg: m.push(m.storage(m.stack.pop())),
}
"""Every step that is known; sets, buffers and the extension registry are not needed."""
