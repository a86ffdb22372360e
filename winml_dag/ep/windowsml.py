"""Execution providers from the catalog of Windows ML, which Windows updates for all programs of a machine.

The package ``windowsml`` wraps its C interface. The catalog can also download missing providers; that is left to the
user, because a build downloads nothing.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from winml_dag.ep.availability import is_windows
from winml_dag.errors import StageError
from winml_dag.explanation import explanation

_MODULE = "windowsml"


def library_in_catalog(name: str) -> Path | None:
    """Return the library of the provider *name*, if it is on this machine; nothing is prepared or loaded."""
    try:
        provider = _provider(name)
    except (ImportError, OSError):
        return None
    path = "" if provider is None else provider.library_path
    return Path(path) if path else None


def ready_library(name: str) -> Path:
    """Return the library of the provider *name*, ready to be registered with onnxruntime in this process.

    Raises StageError if Windows ML, or the provider, is not available.
    """
    if not is_windows():
        raise StageError(
            f"Windows ML, from which {name} would come, is part of Windows.", advice="Run this stage there."
        )
    try:
        provider = _provider(name)
        if provider is None:
            raise StageError(
                f"The catalog of Windows ML has no {name} for this machine.",
                advice="Its hardware or its driver is missing: run this stage on a machine that has them.",
            )
        states = importlib.import_module(_MODULE).EpReadyState
        if provider.ready_state == states.NotPresent:
            raise StageError(
                f"Windows ML offers {name} for this machine, but it is not installed.",
                advice='Install it once: python -c "import windowsml; [ep.ensure_ready() for ep in '
                f"windowsml.EpCatalog().find_all_providers() if ep.name == '{name}']\"",
            )
        # It is installed: this only allows the process to load from its package.
        provider.ensure_ready()
        return Path(provider.library_path)
    except (ImportError, OSError) as error:
        raise StageError(
            f"Windows ML cannot give {name}: {explanation(error)}.", advice="Check its installation."
        ) from error


def _provider(name: str) -> Any:
    return next((found for found in _catalog().find_all_providers() if found.name == name), None)


@cache
def _catalog() -> Any:
    """Return the catalog, kept until the process ends: releasing it has crashed with drivers of some NPUs."""
    return importlib.import_module(_MODULE).EpCatalog()
