"""The types of a recipe's fields: strict, because a value that is almost valid is an error.

``"10"`` is not a number and ``1`` is not true; a whole number is a number. Null means the default only where winml-cli
writes null itself: fields that default to null, and fields that contain other keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    Strict,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from winml_dag.errors import InputError, RecipeError, UsageError, known_instead
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.precision import parse_precision

T = TypeVar("T")

_CONTROL = re.compile("[\x00-\x1f\x7f]")


class PathMark(Enum):
    """Marks a field as a path, which is relative to the recipe's folder, or as either a path or an id on the hub."""

    PATH = "path"
    PATH_OR_ID = "path or id"


class Section(BaseModel):
    """Base of all sections. Validators are compiled with the first recipe, and only the root's."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),  # model_id and similar names are winml-cli's
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, object], name: str = "") -> Self:
        """Create the section from *values*, which a recipe has under *name*, by default that of the class.

        Raises RecipeError, with one line in ``problems`` for each error.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            # Imported here: errors are rare, and the import is slow.
            from winml_dag.recipe.problems import section_problems

            name = name or cls.__name__.lower()
            found = section_problems(error, cls, name)
            raise RecipeError(f"The {name} section is wrong:", problems=found) from None

    @classmethod
    def merged(cls, written: Self | None, given: Mapping[str, object], name: str = "") -> Self:
        """Return the section *written*, with its fields overridden by *given*. Raises as :meth:`from_dict` does."""
        if written is not None and not given:
            return written
        return cls.from_dict({**({} if written is None else written.to_dict()), **given}, name)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return what was set, as in a recipe; :meth:`from_dict` creates an equal section from it."""
        plain: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return plain


def unset(kind: type[Section], alias: str | None = None) -> Any:
    """Return the field whose default is an empty section *kind*: one for all recipes, since it cannot be changed."""
    return Field(default_factory=cache(kind.model_construct), alias=alias)


def keys_of(name: str, info: FieldInfo) -> list[str]:
    """Return the names of the field *name* in a recipe."""
    alias = info.validation_alias
    if isinstance(alias, AliasChoices):
        return [choice for choice in alias.choices if isinstance(choice, str)]
    return [alias if isinstance(alias, str) else name]


def problem(message: str, at: tuple[str, ...] = ()) -> PydanticCustomError:
    """Return an error whose *message* is shown unchanged; *at*: the key below the section that it is about."""
    return PydanticCustomError("recipe", "{message}", {"message": message, "at": at})


def replacing(written: object, meant: object) -> BeforeValidator:
    """Return the validator that takes the value *written*, of the same type, for *meant*."""
    return BeforeValidator(lambda value: meant if type(value) is type(written) and value == written else value)


def known(noun: str, names: Collection[str]) -> AfterValidator:
    """Return the validator that rejects a text that is none of *names*."""

    def check(name: str) -> str:
        if name not in names:
            raise problem(f"unknown {noun}{known_instead(name, names)}")
        return name

    return AfterValidator(check)


def _check_text(text: str) -> str:
    if not text.strip():
        raise problem("must not be empty")
    if _CONTROL.search(text):
        raise problem("must not contain control characters")
    return text


def _check_argument(text: str) -> str:
    if "\0" in text:
        raise problem("must not contain the character 0")
    return text


def _check_precision(name: str) -> str:
    try:
        parse_precision(name)
    except UsageError as error:
        raise problem(error.message) from None
    return name


def _number_or_name(number: str, named: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise problem(f"expected a whole number, or the name of {named}")
        if isinstance(value, str):
            return _check_text(value)
        if not 0 < value <= 2**31 - 1:
            raise problem(f"{number} must be greater than 0, got {value}")
        return value

    return check


def _check_axis(name: str) -> str:
    if not (name.isascii() and name.isdecimal()):
        raise problem("an axis is a whole number, counted from 0")
    return name


def _check_model_path(value: object) -> object:
    pieces = value.values() if isinstance(value, Mapping) else [value]
    if not all(isinstance(piece, str) and piece.strip() for piece in pieces):
        raise problem("expected a path, or a path for each role")
    return value


# A list in the file is a tuple here: only the container is lenient, its members are strict.
ListOf = Annotated[tuple[T, ...], Strict(False)]
MapOf = Annotated[Mapping[str, T], replacing(None, {})]
OrEmpty = Annotated[T, replacing(None, {})]

# Arguments of a program: multiple lines and empty text are valid.
Argument = Annotated[str, AfterValidator(_check_argument)]
# Below opset 9, PyTorch lists every weight among the inputs.
Opset = Annotated[int, Field(ge=9, le=2**31 - 1)]
Seconds = Annotated[float, Field(gt=0, le=10**7)]
Text = Annotated[str, AfterValidator(_check_text)]
PathText = Annotated[Text, PathMark.PATH]
PathOrId = Annotated[Text, PathMark.PATH_OR_ID]
Count = Annotated[int, Field(gt=0, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
PrecisionName = Annotated[str, AfterValidator(_check_precision)]
CapabilityName = Annotated[str, known("capability", CATALOG)]
Dimension = Annotated[int | str, BeforeValidator(_number_or_name("a dimension", "a dynamic axis"))]
Chip = Annotated[int | str, BeforeValidator(_number_or_name("the number of a chip", "a chip"))]
Axis = Annotated[str, AfterValidator(_check_axis)]
ModelPath = Annotated[str | Mapping[str, str], BeforeValidator(_check_model_path)]

# winml-cli's names for the dimensions of inputs.
InputDimension = Literal[
    "batch_size", "sequence_length", "num_choices", "num_channels", "height", "width", "num_frames",
    "audio_sequence_length", "nb_max_frames", "feature_size", "point_batch_size", "nb_points_per_image",
]  # fmt: skip
Device = Literal["auto", "cpu", "gpu", "npu"]
IntegerType = Literal["uint8", "int8", "uint16", "int16"]
WeightType = Literal["uint4", "int4", "uint8", "int8", "uint16", "int16"]
TensorType = Literal[
    "float32", "float16", "bfloat16", "float64",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
]  # fmt: skip


# Paths in a recipe: which fields are some, and what they mean.

V = TypeVar("V")
# Called with a value, and whether it may also be an id on the hub.
ChangePath: TypeAlias = Callable[[str, bool], str]

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def is_path_like(model: str) -> bool:
    """Return whether *model* can only be a path, not a hub id: ``./bert``, ``C:/models``, ``a/b/c``, ``resnet.onnx``.

    ``bert`` and ``org/bert`` can be both; a caller that may read the file system decides.
    """
    return model.casefold().endswith(".onnx") or not _HUB_ID.fullmatch(model)


def resolve_path(folder: Path, text: str) -> Path:
    """Return the path that *text* means in a recipe in *folder*; ``~`` is the user's home.

    Raises InputError if there is no home folder for ``~``.
    """
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"The path {text!r} names a home folder that does not exist.") from None


def with_paths(section: type[Section], values: Mapping[str, V], change: ChangePath) -> dict[str, V]:
    """Return *values* of *section* with *change* applied to the fields that are paths.

    Values that the schema does not allow are not changed.
    """
    found: dict[str, Any] = dict(values)
    for key, at in _path_fields(section).items():
        value = found.get(key)
        if at.may_be_id is not None and isinstance(value, str) and value:
            found[key] = change(value, at.may_be_id)
        elif at.section is not None and isinstance(value, Mapping):
            inner = at.section
            found[key] = (
                {
                    name: with_paths(inner, each, change) if isinstance(each, Mapping) else each
                    for name, each in value.items()
                }
                if at.by_name
                else with_paths(inner, value, change)
            )
    return found


@dataclass(frozen=True)
class _PathField:
    """A field that is a path (*may_be_id* is not None), or a *section* or several *by_name* that may have some."""

    may_be_id: bool | None
    section: type[Section] | None
    by_name: bool


@cache
def _path_fields(section: type[Section]) -> Mapping[str, _PathField]:
    """Return the fields of *section* that are paths or sections, by key."""
    found = {}
    for name, info in section.model_fields.items():
        parts = [*_parts(info.annotation), *info.metadata]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, Section)), None)
        mark = next((part for part in parts if isinstance(part, PathMark)), None)
        if inner or mark:
            may_be_id = None if mark is None else mark is PathMark.PATH_OR_ID
            field = _PathField(may_be_id, inner, get_origin(info.annotation) is Mapping)
            found.update(dict.fromkeys(keys_of(name, info), field))
    return found


def _parts(kind: object) -> Iterator[object]:
    """Yield the types that *kind* consists of, and what they are annotated with."""
    yield kind
    for inner in get_args(kind):
        yield from _parts(inner)
