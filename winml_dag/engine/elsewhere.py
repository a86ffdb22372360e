"""Run the work of one stage with another environment's Python: ``python elsewhere.py PACKAGE FOLDER``.

All imports use that environment, except this package, which is loaded from the folder PACKAGE. Adding PACKAGE's parent
to the search path would also put everything installed next to this package ahead of that environment's packages.
"""

import sys

_OLDEST = (3, 11)


def _refuse(folder: str, error: str, advice: str) -> None:
    """Write why the work was not done to the worker's result file, which the engine reads."""
    import json
    import os

    with open(os.path.join(folder, "result.json"), "w") as file:  # noqa: PTH118 - runs on any Python version
        json.dump({"metrics": {}, "error": error, "advice": advice}, file)


def take_package_from(folder: str) -> None:
    import importlib.util
    import os

    file = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location("winml_dag", file, submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _, package, job_folder = sys.argv
    if sys.version_info < _OLDEST:
        found, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, _OLDEST))
        _refuse(
            job_folder,
            "The Python of %s is %s, and Python %s is the oldest that can be used." % (sys.prefix, found, oldest),  # noqa: UP031
            "Make that environment with a newer one.",
        )
        sys.exit(1)
    take_package_from(package)
    from winml_dag.engine.worker import work_elsewhere

    work_elsewhere(job_folder)
