"""Parameter types shared by all commands: non-empty texts and paths, and memory sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

CATALOG = "catalog:"


class _NotEmpty(click.ParamType[Any]):
    """Rejects empty values, which come from unset script variables and mean no default and no current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class _Text(_NotEmpty, click.types.StringParamType):
    pass


class _Path(_NotEmpty, click.Path):
    pass


class Address(_Text):
    """The URL of a remote, possibly with a password."""


class Recipe(_Path):
    """A recipe file, or the name of a bundled recipe."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(CATALOG):
            # Lazy import: loading the recipe modules costs more than everything else in a build with nothing to do.
            from winml_dag.errors import UsageError
            from winml_dag.recipe.load import shipped_path

            try:
                value = str(shipped_path(value.removeprefix(CATALOG)))
            except UsageError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class _Json(_Path):
    """A file with a JSON object, or the object itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if str(value).lstrip().startswith("{") else super().convert(value, param, ctx)


class _Memory(click.ParamType[Any]):
    """Bytes for everything that runs at the same time; ``none`` means no limit."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from winml_dag.engine.resources import UNLIMITED
        from winml_dag.errors import UsageError
        from winml_dag.store.quantities import parse_size

        if isinstance(value, int):
            return value
        if str(value).strip().lower() == "none":
            return UNLIMITED
        try:
            found = parse_size(str(value), "--memory")
        except UsageError as error:
            self.fail(str(error).removeprefix("--memory: "), param, ctx)
        if found == 0:
            self.fail("nothing runs without memory; no limit is none.", param, ctx)
        return found


TEXT = _Text()
ADDRESS = Address()
RECIPE = Recipe(path_type=Path)
FILE = _Path(path_type=Path)
JSON = _Json(path_type=Path)
MEMORY = _Memory()
