"""Classes of ``@frozen`` behave like ``@dataclass(frozen=True)``."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest

from winml_dag.frozen import frozen


def _class(decorator: Callable[[type], type]) -> Any:
    class Point:
        """A point."""

        x: int
        y: int = 2
        marks: list[str] = field(default_factory=list)
        secret: str = field(default="s", repr=False, compare=False)

        @cached_property
        def doubled(self) -> int:
            return 2 * self.x

    return decorator(Point)


Ours = _class(frozen)
Theirs = _class(dataclass(frozen=True))
# Of this one, so many were made that it has an ``__init__`` of its own.
Many = _class(frozen)
for number in range(300):
    Many(number)


@pytest.mark.parametrize(
    "values", [((1,), {}), ((1, 3, ["a"]), {}), ((), {"y": 5, "x": 1}), ((1,), {"secret": "t"}), ((1, 2, [], "u"), {})]
)
def test_it_is_made_shown_and_converted_as_a_dataclass(values: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    given, named = values
    theirs = Theirs(*given, **named)
    for ours in (Ours(*given, **named), Many(*given, **named)):
        assert repr(ours) == repr(theirs)
        assert list(vars(ours)) == list(vars(theirs))
        assert list(asdict(ours).items()) == list(asdict(theirs).items())
        assert [each.name for each in fields(ours)] == [each.name for each in fields(theirs)]
        assert asdict(replace(ours, y=9)) == asdict(replace(theirs, y=9))
        assert vars(copy.deepcopy(ours)) == vars(ours)


@pytest.mark.parametrize("values", [((), {}), ((1, 2, [], "u", 5), {}), ((1,), {"z": 1}), ((), {"y": 1})])
def test_it_refuses_the_arguments_that_a_dataclass_refuses(values: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    given, named = values
    for kind in (Ours, Many, Theirs):
        with pytest.raises(TypeError):
            kind(*given, **named)


def test_equality_is_that_of_the_compared_fields_of_one_class() -> None:
    one = Ours(1)
    assert one.doubled == 2
    assert one == Ours(1, secret="other")
    assert one != Ours(2)
    assert one != Theirs(1)
    assert hash(Ours(1, marks=())) == hash(Theirs(1, marks=()))
    assert Ours(1).marks is not one.marks
    assert Many(1).marks is not Many(1).marks


def test_it_cannot_be_changed() -> None:
    one = Ours(1)
    with pytest.raises(FrozenInstanceError):
        one.x = 2
    with pytest.raises(FrozenInstanceError):
        del one.x
    assert one.x == 1


@frozen
class _Base:
    x: int


@frozen
class _Derived(_Base):
    y: int = 1

    def __repr__(self) -> str:
        return "own"


def test_it_is_inherited_and_pickled() -> None:
    one = _Derived(3)
    assert pickle.loads(pickle.dumps(one)) == one
    assert (one.x, one.y, repr(one)) == (3, 1, "own")
    assert one != _Base(3)
