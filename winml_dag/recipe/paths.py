"""Paths in a recipe: relative to the recipe's own folder, so that a recipe means the same wherever it is run from."""

from __future__ import annotations

import re
from pathlib import Path

from winml_dag.errors import InputError

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def is_path_like(model: str) -> bool:
    """Whether *model* can only be a path, not a hub id: ``./bert``, ``C:/models``, ``a/b/c``, ``resnet.onnx``.

    ``bert`` and ``org/bert`` can be both; whoever may look at the file system decides.
    """
    return model.casefold().endswith(".onnx") or not _HUB_ID.fullmatch(model)


def resolve_path(folder: Path, text: str) -> Path:
    """The path that *text* names in a recipe that lies in *folder*; ``~`` is the user's home.

    Raises:
        InputError: when there is no home to put for ``~``.
    """
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"The path {text!r} names a home folder that does not exist.") from None
