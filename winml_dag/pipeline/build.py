"""The one way through: plan, run, materialise, record. The command line and the Python API both call :func:`build`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag import __version__
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.placed import placed_files
from winml_dag.engine.plan import plan_graph, remembered_name
from winml_dag.errors import StoreError, UsageError
from winml_dag.pipeline.accounts import settle_accounts
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary
from winml_dag.pipeline.commit import finish_change, is_changing
from winml_dag.pipeline.layout import BUILD_CONFIG, MANIFEST, MODEL, RESERVED, VISIBLE_OUTPUTS
from winml_dag.pipeline.manifest import Manifest, folder_in, make_manifest, manifest_text, read_manifest
from winml_dag.pipeline.outputs import Materialised, OutputFolder, folder_key, prepare_folder, refuse_file
from winml_dag.pipeline.userfolder import UserFolder
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_file
from winml_dag.store.local import LocalStore
from winml_dag.store.store import BlobDamaged

if TYPE_CHECKING:
    from winml_dag.engine.execute import Executor

MADE_BY = f"winml_dag {__version__}"
# A blob that is damaged again after its stage has run anew is a matter for its owner, not for another try.
_TRIES = 3


@dataclass(frozen=True)
class BuildResult:
    """What became of a build. ``stages`` has one entry for every place in the line, those left out included;
    ``cache_note`` is a sentence when the cache was kept to its limit.
    """

    build: BuildSummary
    stages: tuple[StageView, ...]
    elapsed_seconds: float
    materialised: Materialised = field(default_factory=Materialised)
    cache_note: str = ""

    @property
    def final_artifact(self) -> Path | None:
        """The model to ship; None when the build did not get that far, or is of stages without a model."""
        return None if self.failed or self.build.origin == "stages" else self.build.output_dir / MODEL

    @property
    def failed(self) -> bool:
        return any(view.status is Status.FAILED for view in self.stages)


@dataclass(frozen=True)
class StageView:
    """One place in the line of a build as reports show it; ``result`` is None for a stage that is left out."""

    id: str
    stage: str
    status: Status
    reason: str
    result: StageResult | None = None

    @property
    def cache_key(self) -> str | None:
        return None if self.result is None else self.result.cache_key

    @property
    def elapsed_seconds(self) -> float | None:
        return 0.0 if self.result is None else self.result.elapsed_seconds


@dataclass(frozen=True)
class BuildOptions:
    """How to go about it, none of which changes a byte of the result.

    ``link``: files that are put into the output folder are read-only hard links into the cache, not copies.
    """

    jobs: int = 1
    keep_going: bool = False
    rebuild: bool = False
    stage_timeout_seconds: float | None = None
    link: bool = False


def plan(planned: BuildGraph, store: LocalStore, *, rebuild: bool = False, explain: bool = False) -> BuildResult:
    """What :func:`build` would do; nothing is run and nothing written. *explain* adds to reasons what a build leaves
    out of them, because it takes looking through records.
    """
    started = time.monotonic()
    scope = planned.summary.scope
    results = plan_graph(planned.graph, planned.sources, store, scope=scope, rebuild=rebuild)
    if explain:
        from winml_dag.engine.explain import explained

        results = explained(planned.graph, planned.sources, results, store, scope=scope)
    return BuildResult(planned.summary, tuple(views(planned, results)), time.monotonic() - started)


def build(
    planned: BuildGraph,
    store: LocalStore,
    options: BuildOptions = BuildOptions(),
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> BuildResult:
    """Bring the output folder of a build up to date, running only what is not already known.

    A stage that fails is in the result, not raised; then the output folder is as it was, and what stages of the
    recipe's own had finished is in its place.

    Raises:
        UsageError: when a file of somebody else's is in the way, before anything has run.
        StoreError: when the cache or the output folder cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    started = time.monotonic()
    wanted = planned.summary
    refuse_file(wanted.output_dir)
    if not is_changing(wanted.output_dir):  # else another build is at it; who owns what is asked again at the end
        _output_folder(planned, store).refuse_foreign(RESERVED if planned.final else (MANIFEST,))

    for attempt in range(_TRIES):
        results = _run(planned, store, replace(options, rebuild=options.rebuild and attempt == 0), observer, executor)
        by_id = {result.node.id: result for result in results}
        finished = BuildResult(wanted, tuple(views(planned, results)), time.monotonic() - started)
        if any(result.status in (Status.FAILED, Status.SKIPPED) for result in results):
            return replace(finished, cache_note=settle_accounts(results, store))
        try:
            done = _materialise(planned, by_id, store, time.monotonic() - started, link=options.link)
        except BlobDamaged:
            continue  # it is in quarantine now, so its stage will be found wanting
        _note(planned, by_id, store)
        note = settle_accounts(results, store)
        return replace(finished, materialised=done, elapsed_seconds=time.monotonic() - started, cache_note=note)
    raise StoreError(
        "What was made is damaged in the cache again and again.",
        advice="Check the disk, or choose another cache folder with --cache-dir.",
    )


def _owned(previous: Manifest, planned: BuildGraph) -> tuple[FileEntry, ...]:
    """The files in the output folder that may be replaced or removed: ours, unless this very build reads them."""
    # Two files are not in a manifest: it cannot list itself, and the settings are written together with it.
    ours = (*previous.files, FileEntry(MANIFEST, "", 0), FileEntry(BUILD_CONFIG, "", 0))
    read = {file.path.resolve() for source in planned.graph.sources.values() for file in source.files}
    folder = planned.summary.output_dir
    return tuple(entry for entry in ours if (folder / entry.name).resolve() not in read)


def views(planned: BuildGraph, results: tuple[StageResult, ...]) -> Iterator[StageView]:
    """The line of a build with what became of each place."""
    by_id = {result.node.id: result for result in results}
    for step in planned.steps:
        if step.skipped is not None:
            yield StageView(step.id, step.stage, Status.SKIPPED, step.skipped)
        else:
            result = by_id[step.id]
            yield StageView(step.id, step.stage, result.status, str(result.reason), result)


def views_named(line: Sequence[StageView], name: str) -> list[StageView]:
    """The places in the *line* that *name* means: an id, or the name of a stage. Raises UsageError if there is none."""
    found = [view for view in line if name in (view.id, view.stage)]
    if not found:
        known = ", ".join(view.id for view in line)
        raise UsageError(f"This build has no stage {name!r}.", advice=f"It has: {known}.")
    return found


def _run(
    planned: BuildGraph,
    store: LocalStore,
    options: BuildOptions,
    observer: Observer | None,
    executor: Executor | None,
) -> tuple[StageResult, ...]:
    scope = planned.summary.scope
    foreseen = plan_graph(planned.graph, planned.sources, store, scope=scope, rebuild=options.rebuild)
    if own := _user_folder(planned, store):
        own.refuse_foreign(foreseen)
    if all(result.status is Status.REUSED for result in foreseen):
        # Nothing to run: no scratch folder, no threads, no process.
        store.used(result.cache_key for result in foreseen if result.cache_key)
        for result in foreseen:
            if result.cache_key and result.reason.kind != "up to date":
                store.remember(remembered_name(scope, result.node), result.cache_key)
            if observer is not None:
                observer.finished(result)
        return foreseen
    # Imported here: what runs processes and threads takes 30 ms to import, and most builds have nothing to run.
    from winml_dag.engine.execute import LocalExecutor
    from winml_dag.engine.run import Runner
    from winml_dag.engine.schedule import RunOptions, Scheduler

    prepare_folder(planned.summary.output_dir)
    executor = executor or LocalExecutor()
    with store.scratch.open() as scratch:
        runner = Runner(
            planned.graph,
            store,
            executor,
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by=MADE_BY,
            rebuild=options.rebuild,
            timeout_seconds=options.stage_timeout_seconds,
        )
        run_options = RunOptions(scope, options.jobs, options.keep_going, options.rebuild)
        scheduler = Scheduler(planned.graph, planned.sources, store, runner, run_options, observer)
        return scheduler.run()


def _materialise(
    planned: BuildGraph,
    results: Mapping[str, StageResult],
    store: LocalStore,
    elapsed_seconds: float,
    *,
    link: bool,
) -> Materialised:
    build = planned.summary
    files = visible_files(results)
    own = _materialise_own(planned, results, store)
    value = make_manifest(planned, results, files, elapsed_seconds)
    before = read_manifest(build.output_dir)
    same = before is not None and before.says_the_same_as(value)
    manifest = manifest_text(before.value if same and before is not None else value)
    texts = {**_settings(planned), MANIFEST: manifest}
    if not is_changing(build.output_dir) and _output_folder(planned, store).is_as_wanted(files, texts):
        return own
    # Taking the lock costs 30 ms of imports, so an up-to-date folder is only looked at.
    with store.claim(folder_key(build.output_dir)):
        # First, since it is what settles whose files lie there: a killed build may have put some, and no manifest yet.
        finish_change(build.output_dir)
        # Whose they are may also have changed while we waited for a build that began together with this one.
        return own.and_then(_output_folder(planned, store).materialise(files, texts, link=link))


def _materialise_own(planned: BuildGraph, results: Mapping[str, StageResult], store: LocalStore) -> Materialised:
    """Put what the recipe's own stages have made into its folder: before the manifest, which says that it is ours."""
    own = _user_folder(planned, store)
    if own is None or (not is_changing(own.folder) and own.is_as_wanted(results.values())):
        return Materialised()
    with store.claim(folder_key(own.folder)):
        finish_change(own.folder)
        return own.materialise(results.values())


def _user_folder(planned: BuildGraph, store: LocalStore) -> UserFolder | None:
    folder = planned.folder
    if folder is None:
        return None
    previous = read_manifest(planned.summary.output_dir)
    if previous is not None and previous.value.get("folder") != folder_in(folder, planned.summary.output_dir):
        previous = None  # of another recipe, or moved: its files are not here
    return UserFolder(folder, planned, previous, store, store.fingerprints)


def _settings(planned: BuildGraph) -> dict[str, bytes]:
    """The settings as a file of the output folder. Without a model nothing was left to decide."""
    if planned.final is None:
        return {}
    text = json.dumps(planned.summary.settings, indent=2, sort_keys=True, ensure_ascii=False)
    return {BUILD_CONFIG: f"{text}\n".encode()}


def _note(planned: BuildGraph, results: Mapping[str, StageResult], store: LocalStore) -> None:
    """Remember the finished build, so that the next one sees at a glance that there is nothing to do."""
    if planned.origin is None and planned.standing is None:
        return
    from winml_dag.pipeline.standing.noting import Finished, note, note_again
    from winml_dag.pipeline.standing.recall import Made

    checked_ns = time.time_ns()
    folder = planned.summary.output_dir.absolute()
    made = {}
    outputs = {}
    for name, result in results.items():
        assert result.record is not None
        made[name] = Made(result.record.cache_key, result.record.outputs)
    for entry in visible_files(results):
        outputs[str(folder / entry.name)] = entry.digest
    for result in results.values():
        if planned.folder is not None and result.node.folder is not None and result.record is not None:
            placed = placed_files(result.node, result.record)
            outputs.update((str(planned.folder / entry.name), entry.digest) for entry in placed)
    for name in (MANIFEST, *_settings(planned)):
        outputs[str(folder / name)] = digest_file(folder / name)
    seconds = sum(result.record.elapsed_seconds for result in results.values() if result.record is not None)
    finished = Finished(made, outputs, checked_ns, planned.summary.up_to_date, seconds)
    if planned.standing is not None:
        note_again(planned, store, finished)
    else:
        note(planned, store, finished)


def _output_folder(planned: BuildGraph, store: LocalStore) -> OutputFolder:
    folder = planned.summary.output_dir
    previous = read_manifest(folder)
    owned = () if previous is None else _owned(previous, planned)
    return OutputFolder(folder, owned, store, store.fingerprints)


def visible_files(results: Mapping[str, StageResult]) -> tuple[FileEntry, ...]:
    """The files that belong into the output folder; one that several stages share (a sidecar) is there once.

    Raises:
        StoreError: when two stages put out different files of one name.
    """
    found: dict[str, FileEntry] = {}
    for result in results.values():
        assert result.record is not None
        for slot in VISIBLE_OUTPUTS.get(result.node.stage.name, ()) if result.node.folder is None else ():
            for entry in result.record.outputs[slot].files:
                if found.setdefault(entry.name, entry) != entry:
                    raise StoreError(f"Two stages put out different files named {entry.name}.")
    return tuple(sorted(found.values()))
