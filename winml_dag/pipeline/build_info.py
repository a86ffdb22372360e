"""How a build was made, for its manifest: the request, its sources and their hub revisions, installed packages, CI run.

None of this is in a key or describes the result, so a change does not rewrite a manifest. It is for people who receive
the result (:mod:`winml_dag.report.provenance`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag import TOOL_ID
from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Source
from winml_dag.file_reading import read_bytes
from winml_dag.installed import distributions_in, normalised
from winml_dag.pipeline.layout import FinishedBuild, folder_in
from winml_dag.store.remote.ci import ci_run

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Overrides
    from winml_dag.recipe.load import LoadedRecipe


_PACKAGE = Path(__file__).parent.parent
# In the hub's cache: models--org--name/snapshots/<commit>.
_SNAPSHOT = re.compile(r"(?P<kind>models|datasets)--(?P<name>[^/\\]+)[/\\]snapshots[/\\](?P<revision>[0-9a-f]{40})")
_CARD = "README.md"
_CARD_BYTES = 64 << 10
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_LICENSE = re.compile(r"^license:[ \t]*['\"]?([A-Za-z0-9][A-Za-z0-9.+-]*)['\"]?[ \t]*$", re.MULTILINE)


def asked_for(loaded: LoadedRecipe | None, overrides: Overrides) -> JsonObject:
    """Return the recipe as written, with the name and digest of its file, and the options of this run.

    Stages of the recipe are skipped: there may be thousands, and the manifest records each one's config.
    """
    return {"recipe": None if loaded is None else _recipe(loaded), "options": _options(overrides)}


def _recipe(loaded: LoadedRecipe) -> JsonObject:
    digest: JsonObject = {}
    with suppress(OSError):
        digest = {"digest": f"sha256:{hashlib.sha256(read_bytes(loaded.path)).hexdigest()}"}
    says = loaded.recipe.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"stages"})
    return {"file": loaded.path.name, **digest, "says": says}


def _options(overrides: Overrides) -> JsonObject:
    values = {field.name: (getattr(overrides, field.name), field.default) for field in fields(overrides)}
    given = {name: value for name, (value, default) in values.items() if value != default}
    plain: JsonObject = json.loads(json.dumps(given, default=Path.as_posix))
    return plain


def build_info(done: FinishedBuild) -> JsonObject:
    """Return the value of ``run`` in the manifest of a build that has just ended."""
    tools = {
        name: version
        for result in done.results.values()
        if result.record is not None
        for name, version in result.record.key_inputs.toolchain.items()
    }
    run = ci_run()
    return {
        "made_by": TOOL_ID,
        "python": platform.python_version(),
        **({} if run is None else {"ci": asdict(run)}),
        "asked": done.summary.asked,
        "sources": {
            source.name: source_json(source, done.summary.output_dir) for source in done.planned.graph.sources.values()
        },
        "wheels": wheel_records(tools),
    }


def source_json(source: Source, output_dir: Path) -> JsonObject:
    """Return the kind of *source* and its path relative to *output_dir*."""
    if not source.files:
        return {"kind": source.kind}
    first = source.files[0]
    folder = first.path.absolute().parents[first.name.count("/")]
    names = {
        file.name: folder_in(file.path.absolute(), folder)
        for file in source.files
        if str(file.path.absolute()) != f"{folder}{os.sep}{file.name.replace('/', os.sep)}"
    }
    return {
        "kind": source.kind,
        **_place(folder, output_dir),
        **({"names": names} if names else {}),
        **_license(folder),
    }


def _place(folder: Path, output_dir: Path) -> JsonObject:
    """Return the location of *folder*: a hub revision, a path in this package, or a path relative to *output_dir*."""
    if (found := _SNAPSHOT.search(str(folder))) is not None:
        hub = {"kind": found["kind"], "name": found["name"].replace("--", "/"), "revision": found["revision"]}
        below = str(folder)[found.end() :].strip("/\\").replace("\\", "/")
        return {"hub": hub, **({"folder": below} if below else {})}
    with suppress(ValueError):
        return {"package": "winml_dag", "folder": folder.relative_to(_PACKAGE).as_posix()}
    return {"folder": folder_in(folder, output_dir)}


def _license(folder: Path) -> JsonObject:
    """Return the license that the model card in *folder* names: one identifier, in the hub's format."""
    try:
        with (folder / _CARD).open(encoding="utf-8", errors="replace") as file:
            front = _FRONT_MATTER.match(file.read(_CARD_BYTES))
    except OSError:
        return {}
    found = None if front is None else _LICENSE.search(front[1])
    return {} if found is None else {"license": found[1]}


# One digest of what a wheel installed: over the lines of its RECORD that are the same wherever it is installed.
#
# After installation the digest of the wheel itself is unknown. Its RECORD remains, with the SHA-256 of every file in
# the wheel. Lines that the installer adds are skipped: byte code, scripts outside of the folder, and its own metadata.
# See https://packaging.python.org/en/latest/specifications/recording-installed-packages/.

_DIST_INFO = ".dist-info"
# Files that an installer writes to the dist-info folder.
_OF_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"})


def wheel_records(versions: Mapping[str, str]) -> dict[str, str]:
    """Return a digest (64 hex digits) of each installed distribution by its name.

    Distributions that are not installed, or not in the version in *versions*, are skipped.
    """
    places = _installed(tuple(sys.path))
    found = {
        name: _digest_of(place)
        for name, version in sorted(versions.items())
        if (place := places.get((normalised(name), version))) is not None
    }
    return {name: digest for name, digest in found.items() if digest is not None}


# Once per process: a sweep has hundreds of builds, and torch has 10,000 lines.
@cache
def _digest_of(record: Path) -> str | None:
    try:
        return record_digest(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record_digest(text: str) -> str:
    """Return 64 hex digits over the lines of the RECORD *text* that come from the wheel, sorted, with line ends."""
    lines = sorted(f"{line}\n" for line in text.replace("\\", "/").splitlines() if _is_of_the_wheel(line))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_of_the_wheel(line: str) -> bool:
    # Split without the csv module for speed: torch has 10,000 lines. A quoted name with a comma stays intact.
    path, _, rest = line.rpartition(",")[0].rpartition(",")
    folder, _, name = path.rpartition("/")
    if not rest or "__pycache__/" in path or path.startswith(("../", "/")):
        return False
    return not (folder.endswith(_DIST_INFO) and name in _OF_INSTALLERS)


@cache
def _installed(path: tuple[str, ...]) -> dict[tuple[str, str], Path]:
    """Return the RECORD of each distribution in the folders *path*, by normalised name and version; the first wins."""
    found: dict[tuple[str, str], Path] = {}
    for name, version, folder in distributions_in(path):
        if folder.endswith(_DIST_INFO):
            found.setdefault((normalised(name), version), Path(folder, "RECORD"))
    return found
