"""The kinds of values that options have everywhere: texts and paths, neither of them ever empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


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


TEXT = _Text()
FILE = _Path(path_type=Path)
