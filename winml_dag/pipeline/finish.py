"""What is done with a finished build: its files are put where the user finds them, with the manifest, and noted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult
from winml_dag.engine.placed import placed_files
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.commit import finish_change, folder_key, is_changing
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST, reserved
from winml_dag.pipeline.manifest import make_manifest, manifest_text, read_manifest, with_part
from winml_dag.pipeline.outputfile import OutputFile
from winml_dag.pipeline.outputs import Materialised, OutputFolder
from winml_dag.pipeline.userstages.folder import UserFolder
from winml_dag.pipeline.visible import outdated_reports, visible_files, wanted_reports
from winml_dag.smallfiles import MOST_BYTES_OF_MANY, read_bytes
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_file
from winml_dag.store.local import LocalStore


def refuse_foreign(planned: BuildGraph, store: LocalStore, *, overwrite: bool) -> None:
    """Raise UsageError when a file of somebody else's is where a build will write, whatever it comes to."""
    if planned.summary.output_file is not None:
        name = planned.summary.output_file
        file = _output_file(planned, name, store, overwrite=overwrite)
        file.refuse_foreign((*planned.summary.also, *wanted_reports(planned)))
    elif not planned.others:  # of a part, the manifest was seen to be the one that we wrote
        build = planned.summary
        names = reserved(build.settings, build.components) if planned.final else (MANIFEST,)
        output_folder(planned, store, overwrite=overwrite).refuse_foreign(names)


def materialise(
    planned: BuildGraph,
    own: UserFolder | None,
    results: Mapping[str, StageResult],
    store: LocalStore,
    elapsed_seconds: float,
    *,
    link: bool,
    overwrite: bool,
) -> Materialised:
    """Put what a finished build has made where its user finds it, and its manifest; *own*: the recipe's folder.

    Raises:
        BlobDamaged: when a file cannot be fetched; its stage has to run again.
        UsageError, StoreError: as :class:`OutputFolder` and :class:`UserFolder` do.
    """
    # Before the manifest, which says that these are ours.
    placed = Materialised() if own is None else own.materialise(results.values())
    if planned.summary.output_file is not None:
        file = _output_file(planned, planned.summary.output_file, store, overwrite=overwrite)
        files = visible_files(planned, results, store).files
        return placed.and_then(file.materialise(files, tuple(outdated_reports(planned))))
    if planned.others:
        return placed.and_then(_materialise_part(planned, results, store, elapsed_seconds))
    build = planned.summary
    visible = visible_files(planned, results, store)
    value = make_manifest(planned, results, visible.files, elapsed_seconds)
    before = read_manifest(build.output_dir)
    same = before is not None and before.says_the_same_as(value)
    manifest = manifest_text(before.value if same and before is not None else _with_run(value, planned, results))
    files, texts = visible.results, {**visible.rewritten, **_settings(planned), MANIFEST: manifest}
    if not is_changing(build.output_dir) and output_folder(planned, store).is_as_wanted(files, texts):
        return placed
    # Taking the lock costs 30 ms of imports, so an up-to-date folder is only looked at.
    with store.claim(folder_key(build.output_dir)):
        # First, since it is what settles whose files lie there: a killed build may have put some, and no manifest yet.
        finish_change(build.output_dir, store.changes)
        # Whose they are may also have changed while we waited for a build that began together with this one.
        folder = output_folder(planned, store, overwrite=overwrite)
        return placed.and_then(folder.materialise(files, texts, link=link))


def _with_run(value: JsonObject, planned: BuildGraph, results: Mapping[str, StageResult]) -> JsonObject:
    # Imported here, and asked only when a manifest is written: an up-to-date folder has no use for it.
    from winml_dag.pipeline.circumstances import circumstances

    return {**value, "run": circumstances(planned, results)}


def _materialise_part(
    planned: BuildGraph, results: Mapping[str, StageResult], store: LocalStore, elapsed_seconds: float
) -> Materialised:
    """The same for a part of a build, whose stages have all put their files into the recipe's folder: of the manifest
    only their lines are made anew.
    """
    folder = planned.summary.output_dir
    with store.claim(folder_key(folder)):
        finish_change(folder, store.changes)
        part = make_manifest(planned, results, (), elapsed_seconds)
        text = with_part(read_bytes(folder / MANIFEST, MOST_BYTES_OF_MANY), part)
        output = OutputFolder(folder, (FileEntry(MANIFEST, "", 0),), store, store.fingerprints, store.changes)
        return output.materialise((), {MANIFEST: text})


def user_folder(planned: BuildGraph, store: LocalStore) -> UserFolder | None:
    """The recipe's folder, if stages of its own put files there."""
    folder = planned.folder
    if folder is None:
        return None
    return UserFolder(folder, planned, _placed(planned, folder), store, store.fingerprints)


def _placed(planned: BuildGraph, folder: Path) -> Mapping[str, Sequence[FileEntry]]:
    """What the last build has put into the recipe's *folder*, by stage."""
    if planned.others:
        return planned.placed
    previous = read_manifest(planned.summary.output_dir)
    return {} if previous is None else previous.placed_in(folder, planned.summary.output_dir)


def _settings(planned: BuildGraph) -> dict[str, bytes]:
    """The settings as a file of the output folder. Without a model nothing was left to decide."""
    if planned.final is None:
        return {}
    text = json.dumps(planned.summary.settings, indent=2, sort_keys=True, ensure_ascii=False)
    return {BUILD_CONFIG: f"{text}\n".encode()}


def output_folder(planned: BuildGraph, store: LocalStore, *, overwrite: bool = False) -> OutputFolder:
    """The output folder of a build, and what in it is ours."""
    folder = planned.summary.output_dir
    previous = read_manifest(folder)
    read = {file.path.resolve() for source in planned.graph.sources.values() for file in source.files}
    # Two files are not in a manifest: it cannot list itself, and the settings are written together with it.
    ours = () if previous is None else (*previous.files, FileEntry(MANIFEST, "", 0), FileEntry(BUILD_CONFIG, "", 0))
    owned = [entry for entry in ours if (folder / entry.name).resolve() not in read]
    if _is_recipe(folder / BUILD_CONFIG, planned):
        read.add((folder / BUILD_CONFIG).resolve())
    return OutputFolder(folder, owned, store, store.fingerprints, store.changes, read=read, overwrite=overwrite)


def _is_recipe(path: Path, planned: BuildGraph) -> bool:
    """Whether the file *path* is the recipe of *planned*, or says the same."""
    recipe = planned.summary.asked.get("recipe")
    if not isinstance(recipe, Mapping) or recipe.get("file") != path.name:
        return False
    try:
        return recipe.get("digest") == f"sha256:{hashlib.sha256(read_bytes(path)).hexdigest()}"
    except (OSError, ValueError):
        return False


def _output_file(planned: BuildGraph, name: str, store: LocalStore, *, overwrite: bool) -> OutputFile:
    read = (file.path for source in planned.graph.sources.values() for file in source.files)
    return OutputFile(planned.summary.output_dir, name, read, store, overwrite=overwrite)


def note_finished(
    planned: BuildGraph,
    own: UserFolder | None,
    results: Mapping[str, StageResult],
    files: Iterable[FileEntry],
    store: LocalStore,
    checked_ns: int,
) -> None:
    """Remember a finished build, of which *files* lie in its output folder, so that the next one sees at a glance that
    there is nothing to do. Nothing that it has put was found right before *checked_ns*.
    """
    if planned.standing is None:
        return
    from winml_dag.pipeline.standing.noting import Finished, note_again
    from winml_dag.pipeline.standing.recall import Made, placed_text

    folder = planned.summary.output_dir.absolute()
    outputs = {str(folder / entry.name): entry.digest for entry in files}
    if planned.summary.output_file is None:
        outputs |= {str(folder / name): digest_file(folder / name) for name in (MANIFEST, *_settings(planned))}
    made: dict[str, Made] = {}
    seconds: dict[str, float] = {}
    for name, result in results.items():
        record = result.record
        assert record is not None
        made[name] = Made(record.cache_key, record.outputs)
        seconds[record.cache_key] = record.elapsed_seconds
        if result.node.folder is not None:
            put = placed_files(result.node, record.outputs)
            outputs.update((placed_text(result.node.folder, entry.name), entry.digest) for entry in put)
    seen = {} if own is None else own.in_place.seen_right(outputs)
    finished = Finished(made, outputs, seen, checked_ns, planned.summary.up_to_date, sum(seconds.values()))
    note_again(planned, store, finished)


def whole(planned: BuildGraph, store: LocalStore) -> BuildGraph:
    """The graph that *planned* is a part of; itself when it is no part."""
    if not planned.others or planned.standing is None:
        return planned
    from winml_dag.pipeline.standing.recall import recall

    return recall(planned.standing, store)
