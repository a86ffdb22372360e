"""The kinds of values that options have everywhere: texts and paths, neither of them ever empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_CATALOG = "catalog:"


class _NotEmpty(click.ParamType[Any]):
    """What is empty is a variable that a script has not set: it means neither a default nor the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must not be empty", param, ctx)
        return super().convert(value, param, ctx)


class _Text(_NotEmpty, click.types.StringParamType):
    pass


class _Path(_NotEmpty, click.Path):
    pass


class _Recipe(_Path):
    """A recipe's file, or the name of one that comes with us."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith(_CATALOG):
            # Imported here: reading recipes costs more than all else that a build with nothing to do needs.
            from winml_dag.errors import UsageError
            from winml_dag.recipe.shipped import shipped_path

            try:
                value = str(shipped_path(value.removeprefix(_CATALOG)))
            except UsageError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


TEXT = _Text()
RECIPE = _Recipe(path_type=Path)
FILE = _Path(path_type=Path)
