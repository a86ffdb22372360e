"""Frozen dataclasses that cost little to define.

``dataclass(frozen=True)`` compiles six methods for each class, which takes 1.3 ms. A build after an edit imports a
hundred classes and uses half of them, so this was a quarter of its processor time. Here, all classes share their
methods, until so many values of one are made that compiling its ``__init__`` pays: that is five times as fast.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from itertools import count
from typing import Any, Never, TypeVar, dataclass_transform

T = TypeVar("T")

# Compiling takes as long as making this many values saves.
_MANY = 100


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Turn *cls* into what ``dataclass(frozen=True)`` makes of it, for the type checker and :mod:`dataclasses` too."""
    made: Any = dataclass(init=False, repr=False, eq=False)(cls)
    every = fields(made)
    made._initial = {each.name: each.default for each in every}
    made._factories = [(each.name, each.default_factory) for each in every if each.default_factory is not MISSING]
    made._required = [each.name for each in every if each.default is MISSING is each.default_factory]
    made._compared = [each.name for each in every if each.compare]
    made._numbers = count()
    for name, method in _METHODS.items():
        if name not in cls.__dict__:
            setattr(made, name, method)
    return cls


def _init(self: Any, /, *given: Any, **named: Any) -> None:
    initial, values = self._initial, self.__dict__
    if next(self._numbers) == _MANY:
        _compile_init(next(kind for kind in type(self).__mro__ if "_numbers" in kind.__dict__))
    # In the order of the fields, whatever the order of the arguments.
    values.update(initial)
    if given:
        values.update(zip(initial, given, strict=False))
    values.update(named)
    if len(given) > len(initial) or len(values) > len(initial):
        raise TypeError(f"{type(self).__name__} takes {', '.join(initial)}, and not {given} and {named}")
    if len(given) + len(named) == len(initial):
        return
    for name, make in self._factories:
        if values[name] is MISSING:
            values[name] = make()
    for name in self._required:
        if values[name] is MISSING:
            raise TypeError(f"{type(self).__name__} needs {name!r}")


def _compile_init(kind: Any) -> None:
    parameters, lines = [], []
    factories = dict(kind._factories)
    for name in kind._initial:
        default = "" if name in kind._required else f"=_initial[{name!r}]"
        parameters.append(f"{name}{default}")
        made = f"_factories[{name!r}]() if {name} is _MISSING else {name}" if name in factories else name
        lines.append(f"    _fields[{name!r}] = {made}")
    text = "\n".join([f"def __init__(self, {', '.join(parameters)}):", "    _fields = self.__dict__", *lines])
    known: dict[str, Any] = {"_initial": kind._initial, "_factories": factories, "_MISSING": MISSING}
    exec(text, known)
    kind.__init__ = known["__init__"]


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _values(self: Any) -> tuple[Any, ...]:
    values = self.__dict__
    return tuple([values[name] for name in self._compared])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse(self: object, name: str, *_: object) -> Never:  # noqa: ARG001
    raise FrozenInstanceError(f"{name!r} cannot be changed")


_METHODS = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
