"""Who made a record: what a reader of a shared cache wants to know of a result that is not their own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.errors import StoreError

_TEXTS = ("builder", "run", "revision", "host")
_MOST_CHARACTERS = 500
_MOST_TOOLS = 50
# What a reader asks first when two machines did not come to the same.
_TOOLS = ("onnx", "onnxruntime", "onnxruntime-qnn", "torch", "transformers", "numpy")


@dataclass(frozen=True)
class Maker:
    """No word of this is in a key, and all of it is in the signature.

    Attributes:
        builder: this program with its version, ``winml_dag 0.1.0``.
        run: the CI run, as an address where the system tells one; empty outside of CI.
        revision: the commit that CI builds; empty when it does not say.
        host: the class of machine, ``Linux x86_64``, and no name.
        tools: versions of Python and of the packages that most often matter, by name.
    """

    builder: str
    run: str = ""
    revision: str = ""
    host: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return {**{name: cast(str, getattr(self, name)) for name in _TEXTS}, "tools": self.tools}

    @classmethod
    def from_json(cls, value: JsonValue) -> Maker:
        """Rebuild from :meth:`to_json`.

        Raises:
            StoreError: for anything else, and for texts that would do something to a terminal they are shown on.
        """
        if isinstance(value, Mapping) and value.keys() == {*_TEXTS, "tools"}:
            tools = value["tools"]
            if isinstance(tools, Mapping) and len(tools) <= _MOST_TOOLS:
                texts = {name: value[name] for name in _TEXTS}
                if all(map(_is_showable, [*texts.values(), *tools, *tools.values()])):
                    return cls(**cast(dict[str, str], texts), tools=cast(Mapping[str, str], tools))
        raise StoreError("Who made a record is not told as it should be.")


def _is_showable(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= _MOST_CHARACTERS


def maker_here(builder: str, *, run: str = "", revision: str = "") -> Maker:
    """Who makes what is made here, *builder* being this program with its version; no package is imported for it."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    tools = {"python": platform.python_version()}
    for name in _TOOLS:
        with suppress(PackageNotFoundError):
            tools[name] = version(name)
    host = f"{platform.system()} {platform.machine()}".strip()
    told = Maker(builder, run=run, revision=revision, host=host, tools=tools)
    try:
        return Maker.from_json(told.to_json())
    except StoreError:
        # Variables of CI that hold what nobody may be shown: the record says less, and is not refused by its readers.
        return replace(told, run="", revision="")
