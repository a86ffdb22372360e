"""Runs on other machines, with dask. Imported only if a cluster is used."""

import importlib.util

from winml_dag.errors import UsageError

if importlib.util.find_spec("distributed") is None:
    raise UsageError(
        "A cluster needs dask's distributed, which is not installed.", advice="pip install winml_dag[cluster]"
    )
