"""Prints the coverage of the corpus as a table: ``python tests/mutations/coverage.py``.

Tests fail if it is incomplete.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import test_keys_of_configs as configs
import test_keys_of_fields as fields
import test_keys_of_files as files
import test_keys_of_own_stages as own
import test_keys_of_tools as tools
import test_what_must_not_matter as surroundings
from field_values import fields_of
from planned_keys import make_project
from reach import EDITS, OPTIONS, REFUSED, declared_name

from winml_dag.recipe.schema import StageEntry


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        make_project(project)
        os.chdir(project)
        sys.path.insert(0, str(project / "packages"))
        all_fields = [*fields.FIELDS, *fields.FLAGS]
        covered = {field.path: len(fields.try_all(field, project).taken) > 1 for field in all_fields}
        os.chdir("/")
    refused = sorted({field for field, _, _, stages in EDITS if stages == REFUSED and not covered[field]})
    again = [path for path, yes in covered.items() if not yes and declared_name(path) != path]
    entry_fields = list(fields_of(StageEntry))
    of_files = len(files.MUST_CHANGE) + len(own.MUST_CHANGE)
    of_no_files = len(files.MUST_NOT_CHANGE) + len(own.MUST_NOT_CHANGE)
    for what, count in (
        ("fields of a recipe, with values from their types", f"{sum(covered.values())} of {len(covered)}"),
        ("  refused by this version, whatever they say", len(refused)),
        *((f"    {name}", "") for name in refused),
        ("  the same once more, in compile.quant_config", len(again)),
        ("fields of a stage that a recipe declares", f"{len(entry_fields)} of {len(entry_fields)}"),
        ("options of a run", f"{len({name for name, *_ in OPTIONS})} of {len(fields.OVERRIDES)}"),
        ("provider options of QNN", f"{len(fields.PROVIDER_OPTIONS)} of {len(fields.PROVIDER_OPTIONS)}"),
        ("fields of the stages' configs", f"{len(configs.FIELDS)} of {len(configs.FIELDS)}"),
        ("edits whose reach is written by hand", len(EDITS) + len(OPTIONS) + len(own.EDITS)),
        ("packages", len({*tools.PACKAGES, *(name for names in tools.PACKAGES_WITH_DATA.values() for name in names)})),
        ("stages whose version is raised", len(configs.STAGES)),
        ("changes of files that must be noticed", of_files),
        ("changes of files that must not matter", of_no_files),
        ("surroundings that must not matter", len(surroundings.SURROUNDINGS)),
        ("spellings that must not matter", len(surroundings.SPELLINGS)),
    ):
        print(f"{what:<50} {count}".rstrip())


if __name__ == "__main__":
    main()
