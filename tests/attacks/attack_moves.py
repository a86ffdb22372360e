"""What an attacker, or a user at the wrong moment, does to a project.

Each move is a function of the site and a number, which determines its target and content. A move that is impossible at
the moment is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from attacked_project import (
    RECIPE,
    TEXTS,
    TWIN,
    VERSIONS,
    Site,
    module,
    read,
    recipe_text,
    relink,
    tool,
    twin,
    write,
)

from winml_dag.store.digest import digest_file

Move = Callable[[Site, int], None]
T = TypeVar("T")

_INPUTS = (
    "project/src/a.txt",
    "project/data/one.txt",
    "project/data/sub/two.txt",
    "project/cur/m.txt",
    "project/data/linked/m.txt",
    "project/src/b.txt",
    "versions/one/m.txt",
)
_ADDED = ("new.txt", "sub/new.txt", "linked/new.txt", "deep/er/new.txt", "z.partial", "sub/.hidden")
_OUTPUTS = (
    "build/mark.txt",
    "build/parts/a.txt",
    "build/gather.txt",
    "build/final.txt",
    "build/tool.txt",
    "twin/mark.txt",
)
_FOLDERS = ("project/data", "project/src", "versions/one", "project/data/sub")
_YEAR_2001_NS = 10**18


def edit(site: Site, number: int) -> None:
    path, text = _file_and_text(site, number)
    write(path, text)


def edit_keeping_times(site: Site, number: int) -> None:
    path, text = _file_and_text(site, number)
    before = path.stat()
    write(path, text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_in_the_past(site: Site, number: int) -> None:
    path, text = _file_and_text(site, number)
    write(path, text)
    os.utime(path, ns=(_YEAR_2001_NS, _YEAR_2001_NS))


def change(site: Site, number: int) -> None:
    """Edit a file so that :func:`change_back` can undo it."""
    path, text = _file_and_text(site, number)
    if not (saved := _saved(site, path)).exists():
        shutil.copy2(path, saved)
    write(path, text)


def change_back(site: Site, number: int) -> None:
    path, _ = _file_and_text(site, number)
    saved = _saved(site, path)
    write(path, saved.read_text())
    shutil.copystat(saved, path)
    saved.unlink()


def rename_over(site: Site, number: int) -> None:
    path, text = _file_and_text(site, number)
    moving = site.root / "moving"
    write(moving, text)
    moving.replace(path)


def swap_files(site: Site, number: int) -> None:
    _swap(site, site.root / _one(_INPUTS, number), site.root / _one(_INPUTS, number // 7 + 1))


def hard_link(site: Site, number: int) -> None:
    one, other = site.root / _one(_INPUTS, number), site.root / _one(_INPUTS, number // 7)
    if not one.samefile(other):
        one.unlink()
        os.link(other, one)


def link_elsewhere(site: Site, number: int) -> None:
    relink(site.project / "cur", f"../versions/{_one(VERSIONS, number)}")


def link_folder_in_folder(site: Site, number: int) -> None:
    relink(site.project / "data/linked", f"../../versions/{_one(VERSIONS, number)}")


def link_file(site: Site, number: int) -> None:
    """Replace a file by a link to another one, or to a missing one."""
    relink(
        site.project / "data/late.txt", f"../../versions/{_one(VERSIONS, number)}/{'late' if number % 2 else 'm'}.txt"
    )


def target_appears(site: Site, number: int) -> None:
    _toggle(site.root / f"versions/{_one(VERSIONS, number)}/late.txt", TEXTS[0])


def clone(site: Site, number: int) -> None:  # noqa: ARG001
    _copy(site)


def link_recipe_parent(site: Site, number: int) -> None:
    _copy(site)
    relink(site.root / "at", _one(("clone", "project"), number))


def link_recipe(site: Site, number: int) -> None:
    site.write(f"project/other{number % 4}.yaml", recipe_text(number))
    relink(site.project / RECIPE, f"other{number % 4}.yaml")


def swap_folders(site: Site, number: int) -> None:
    _swap(site, site.root / f"versions/{_one(VERSIONS, number)}", site.root / f"versions/{_one(VERSIONS, number + 1)}")


def move_away(site: Site, number: int) -> None:
    folder = site.root / _one(_FOLDERS, number)
    folder.rename(site.root / "moving")
    (site.root / "moving").rename(folder)


def replace_folder(site: Site, number: int) -> None:
    """Replace a folder by a copy of itself with one different file."""
    folder = site.root / _one(_FOLDERS[:3], number)
    moving = site.root / "moving"
    shutil.copytree(folder, moving, symlinks=True)
    file = next(path for path in sorted(moving.rglob("*.txt")) if not path.is_symlink())
    write(file, _one(TEXTS, number // 3))
    _swap(site, folder, moving)
    shutil.rmtree(moving)


def drop_in(site: Site, number: int) -> None:
    site.write(f"project/data/{_one(_ADDED, number)}", _one(TEXTS, number // 7))


def take_out(site: Site, number: int) -> None:
    (site.project / "data" / _one(_ADDED, number)).unlink()


def drop_in_for_a_moment(site: Site, number: int) -> None:
    drop_in(site, number)
    take_out(site, number)


def empty_folder(site: Site, number: int) -> None:
    _of_project(site, _one(("data/empty", "data/sub/empty", "build/parts/empty"), number)).mkdir()


def edit_tool(site: Site, number: int) -> None:
    site.write(_one(("project/tools/mark", "path/late/mytool"), number), tool(number // 2 % 3), executable=True)


def replace_tool(site: Site, number: int) -> None:
    path = site.root / _one(("project/tools/mark", "path/late/mytool"), number)
    site.write("moving", tool(number // 2 % 3), executable=True)
    (site.root / "moving").replace(path)


def forbid_tool(site: Site, number: int) -> None:
    path = site.root / _one(("project/tools/mark", "path/late/mytool", "path/early/mytool"), number)
    path.chmod(path.stat().st_mode ^ 0o111)


def earlier_tool(site: Site, number: int) -> None:
    _toggle(site.root / "path/early/mytool", tool(number % 3), mode=0o644 if number % 5 == 0 else 0o755)


def edit_module(site: Site, number: int) -> None:
    site.write("modules/late/steps.py", module(number % 3))


def earlier_module(site: Site, number: int) -> None:
    """Add a module next to the recipe, in a folder that is searched first, or as a package, which takes precedence."""
    names = ("project/steps.py", "modules/early/steps.py", "modules/early/steps/__init__.py", "project/steps/steps.py")
    _toggle(site.root / _one(names, number), module(number // 4 % 3))


def edit_recipe(site: Site, number: int) -> None:
    site.write(f"project/{RECIPE}", recipe_text(number))


def edit_twin(site: Site, number: int) -> None:
    site.write(f"project/{TWIN}", json.dumps(twin(number)))


def set_variable(site: Site, number: int) -> None:
    site.write("variable", str(number))


def start_anew(site: Site, number: int) -> None:  # noqa: ARG001
    """Reset all inputs to the initial state, so that outputs must equal those of the first build."""
    build, twins = site.root / "kept-build", site.root / "kept-twin"
    for kept, name in ((build, "build"), (twins, "twin")):
        if (site.project / name).exists():
            (site.project / name).rename(kept)
    site.make()
    for kept, name in ((build, "build"), (twins, "twin")):
        if kept.exists():
            kept.rename(site.project / name)


def delete_outputs(site: Site, number: int) -> None:
    names = ("build/mark.txt", "build/parts", "build", "twin", "build/parts/sub/b.txt")
    path = _of_project(site, _one(names, number))
    path.unlink() if path.is_file() else shutil.rmtree(path)


def lose_bookkeeping(site: Site, number: int) -> None:
    shutil.rmtree(_of_project(site, _one((".winml-dag", ".winml-dag/recipe.yaml"), number)))


# Moves that may stop a build: it then ends with an error, and never with a wrong result.


def edit_output(site: Site, number: int) -> None:
    path = _of_project(site, _one(_OUTPUTS, number))
    path.chmod(0o644)
    write(path, _one(TEXTS, number // 5))


def output_becomes_link(site: Site, number: int) -> None:
    relink(_of_project(site, _one(_OUTPUTS, number)), str(site.outside / "precious.txt"))


def outputs_lead_outside(site: Site, number: int) -> None:
    _lead_outside(site, _one(("build", "twin", "build/parts"), number))


def bookkeeping_leads_outside(site: Site, number: int) -> None:
    _lead_outside(site, _one((".winml-dag", f".winml-dag/{RECIPE}"), number))


def output_becomes_folder(site: Site, number: int) -> None:
    path = _of_project(site, _one(_OUTPUTS, number))
    path.unlink()
    path.mkdir()


def case_twin(site: Site, number: int) -> None:
    _toggle(site.project / _one(("data/One.txt", "data/sub/TWO.txt"), number), TEXTS[0])


def foreign_file(site: Site, number: int) -> None:
    name = _one(("foreign.txt", "A.txt", "z.partial", "sub/c.txt"), number)
    write(_of_project(site, f"build/parts/{name}"), "foreign\n")


def foreign_link(site: Site, number: int) -> None:  # noqa: ARG001
    relink(_of_project(site, "build/parts/link"), str(site.outside / "assets"))


def journal(site: Site, number: int) -> None:
    """Write the journal of a change that overwrites and deletes files outside."""
    folder = _of_project(site, _one((".winml-dag/recipe.yaml", ".", "build"), number))
    hidden = folder / ".winml-dag-new"
    (hidden / "new/assets").mkdir(parents=True)
    write(hidden / "new/assets/.bashrc", "hostile\n")
    relink(folder / "assets", str(site.outside / "assets"))
    up = os.path.relpath(site.outside, folder.resolve())
    names = ["assets/.bashrc", f"{up}/precious.txt", str(site.outside / "precious.txt")]
    write(hidden / "journal.json", json.dumps({"put": names[:1], "remove": names, "token": "new"}))


def manifest(site: Site, number: int) -> None:
    """Write a manifest that claims to own files outside."""
    path = _of_project(site, f".winml-dag/{_one((RECIPE, TWIN), number)}/build_manifest.json")
    told = json.loads(read(path))
    up = os.path.relpath(site.outside, site.project)
    names = {f"{up}/precious.txt": "precious.txt", str(site.outside / "precious.txt"): "precious.txt"}
    names["out/.bashrc"] = "assets/.bashrc"
    files = [_entry(name, site.outside / file) for name, file in names.items()]
    relink(site.project / "out", str(site.outside / "assets"))
    write(path, json.dumps(_with(told, str(site.outside) if number % 4 < 2 else "../../..", files)))


def nested_json(site: Site, number: int) -> None:
    name = _one((f".winml-dag/{RECIPE}/build_manifest.json", TWIN, RECIPE), number)
    write(_of_project(site, name), "[" * 100_000)


def fifo(site: Site, number: int) -> None:
    names = (
        f".winml-dag/{RECIPE}/build_manifest.json",
        RECIPE,
        "data/fifo",
        "src/a.txt",
        "tools/mark",
        "build/mark.txt",
    )
    path = _of_project(site, _one(names, number))
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def remove_input(site: Site, number: int) -> None:
    (site.root / _one((*_INPUTS, "project/tools/mark", "path/late/mytool"), number)).unlink()


# Damage to the cache, which causes additional runs and nothing else.


def truncate_blob(site: Site, number: int) -> None:
    _truncate(site.cache / "blobs", number)


def truncate_record(site: Site, number: int) -> None:
    _truncate(site.cache / "records", number)


def lose_index(site: Site, number: int) -> None:  # noqa: ARG001
    shutil.rmtree(site.cache / "index")


def lose_notes(site: Site, number: int) -> None:  # noqa: ARG001
    shutil.rmtree(site.cache / "standing")


HARMLESS: tuple[Move, ...] = (
    *(edit, edit_keeping_times, edit_in_the_past, change, change_back, rename_over, swap_files, hard_link),
    *(link_elsewhere, link_folder_in_folder, link_file, target_appears, link_recipe_parent, link_recipe),
    *(swap_folders, move_away, replace_folder, drop_in, take_out, drop_in_for_a_moment, empty_folder),
    *(edit_tool, replace_tool, earlier_tool, edit_module, earlier_module, edit_recipe, edit_twin, set_variable),
    *(clone, start_anew, delete_outputs, lose_bookkeeping),
)
BLOCKING: tuple[Move, ...] = (
    *(edit_output, output_becomes_link, outputs_lead_outside, bookkeeping_leads_outside),
    *(output_becomes_folder, foreign_file, foreign_link),
    *(case_twin, forbid_tool, journal, manifest, nested_json, fifo, remove_input),
)
ON_CACHE: tuple[Move, ...] = (truncate_blob, truncate_record, lose_index, lose_notes)
# Known limits: a folder that is renamed away and back during a run is not always detected. The location of manifests is
# checked when a build starts, since whoever acts during a build already has the user's rights. A command that opens a
# pipe, put in place of its input while it runs, waits for its own time limit, an hour.
BETWEEN_BUILDS_ONLY = (move_away, start_anew, bookkeeping_leads_outside, fifo)


def _of_project(site: Site, name: str) -> Path:
    """Return the path of *name*, unless a link leads outside: no move may change anything there either."""
    path = site.project / name
    if path.resolve().is_relative_to(site.outside.resolve()):
        raise FileNotFoundError(name)
    return path


def _lead_outside(site: Site, name: str) -> None:
    folder = _of_project(site, name)
    shutil.rmtree(folder, ignore_errors=True)
    relink(folder, str(site.outside / "assets"))


def _one(items: Sequence[T], number: int) -> T:
    return items[number % max(1, len(items))]


def _file_and_text(site: Site, number: int) -> tuple[Path, str]:
    return site.root / _one(_INPUTS, number), _one(TEXTS, number // len(_INPUTS))


def _saved(site: Site, path: Path) -> Path:
    return site.root / "saved" / path.relative_to(site.root).as_posix().replace("/", "-")


def _swap(site: Site, one: Path, other: Path) -> None:
    if one.samefile(other):
        return
    between = site.root / "between"
    one.rename(between)
    other.rename(one)
    between.rename(other)


def _toggle(path: Path, text: str, mode: int = 0o644) -> None:
    if path.exists():
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, text)
    path.chmod(mode)


def _copy(site: Site) -> None:
    """Copy the project without outputs, like a clone of its repository."""
    shutil.rmtree(site.root / "clone", ignore_errors=True)
    left_out = shutil.ignore_patterns("build", "twin", ".winml-dag*", "__pycache__", "fifo")
    shutil.copytree(site.project, site.root / "clone", symlinks=True, ignore=left_out)


def _entry(name: str, file: Path) -> dict[str, object]:
    return {"name": name, "digest": digest_file(str(file), "xxh3-128"), "size": file.stat().st_size}


def _with(value: object, folder: str, files: list[dict[str, object]]) -> object:
    """Return *value* with every ``folder`` replaced, and *files* added to all lists of files."""
    if isinstance(value, list):
        return [_with(inner, folder, files) for inner in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _with(inner, folder, files) for name, inner in value.items()}
    changed |= {name: [*changed[name], *files] for name in ("files", "placed") if name in changed}
    return changed | ({"folder": folder} if "folder" in changed else {})


def _truncate(folder: Path, number: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = _one(files, number)
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size // 2)
