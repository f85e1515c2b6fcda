"""What csrc/kernels/interface.h declares: structs, enums, constants and functions, read from its text.

The compiled library carries that text without comments, so that arguments are always packed as it was compiled.
"""

import ctypes
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_FORMATS = {"std::int64_t": "q", "std::int32_t": "i", "float": "f"}
_C_TYPES = {"int": ctypes.c_int, "std::int64_t": ctypes.c_int64}


@dataclass(frozen=True, slots=True)
class NativeStruct:
    """A struct: its fields in order, each with its format as the module `struct` has it. Nested ones are bytes."""

    fields: Mapping[str, str]

    @property
    def alignment(self) -> str:
        """The format code of the widest number, which structs are aligned and padded to."""
        return max("".join(self.fields.values()), key=lambda code: "ifqP".find(code)).replace("P", "q")

    @property
    def format(self) -> str:
        return "".join(self.fields.values()) + "0" + self.alignment


@dataclass(frozen=True, slots=True)
class NativeFunction:
    """A function: what ctypes has to know of it."""

    result: type
    arguments: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class NativeInterface:
    structs: Mapping[str, NativeStruct]
    constants: Mapping[str, int]
    functions: Mapping[str, NativeFunction]
    """By name without `shoal_`."""


def read_interface(text: str) -> NativeInterface:
    """Read declarations. Raises ValueError for a field of an unknown type."""
    constants = {name: int(value) for name, value in re.findall(r"\b([A-Z]\w*) = (\d+)", text)}
    formats = _FORMATS | dict.fromkeys(re.findall(r"\benum (\w+) :", text), "i")
    formats |= dict.fromkeys(re.findall(r"\busing (\w+) = int \(\*\)", text), "P")
    structs: dict[str, NativeStruct] = {}
    for name, body in re.findall(r"\bstruct (\w+) \{ (.*?) \};", text):
        structs[name] = made = NativeStruct(dict(_fields(body, formats)))
        formats[name] = f"0{made.alignment}{struct.calcsize(made.format)}s"
    signatures = re.findall(r"([\w:]+(?: char\*)?) shoal_(\w+)\((.*?)\);", text)
    functions = {name: _function(result, arguments) for result, name, arguments in signatures}
    return NativeInterface(structs, constants, functions)


def _fields(body: str, formats: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    for declaration in body.split(";"):
        if not (parts := re.fullmatch(r"\s*(?:const )?([\w:]+)(\*?) (.+)", declaration)):
            continue
        of, pointer, names = parts.groups()
        if not pointer and of not in formats:
            raise ValueError(f"a field of unknown type: {declaration.strip()}")
        found += [(name, "P" if pointer else formats[of]) for name in names.split(", ")]
    return found


def _function(result: str, arguments: str) -> NativeFunction:
    declared = [argument for argument in arguments.split(", ") if argument]
    types = (ctypes.c_char_p if "*" in argument else _C_TYPES[argument.split()[0]] for argument in declared)
    returned = ctypes.c_char_p if "*" in result else _C_TYPES[result]
    return NativeFunction(returned, tuple(types))
