"""The search for optimize capabilities that help on the target, as a fixed line of stages.

    optimize.0 -> analyze.0 -> optimize.1 -> analyze.1 -> ... -> optimize.N -> analyze.N

Every optimize reads the same model and, from the analyze before it, all capabilities discovered so far. If there are no
new ones, it has the same key as the previous optimize, and so do all later stages: a search that has converged is a
cache hit. The rest of the build reads the last optimize, and the last analyze judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.availability import can_be_asked
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.registry import Target
from winml_dag.ep.support import rule_folder, table_paths
from winml_dag.errors import UsageError
from winml_dag.file_reading import before_reading
from winml_dag.pipeline.search import Search
from winml_dag.pipeline.variant import ResolveContext, Skip
from winml_dag.stages import artifact_types, optimize
from winml_dag.stages.analyze import ASKED_ABOUT, AnalyzeConfig, AnalyzeFields, AnalyzeTarget, QuantizedTo
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.quantize import QuantizeConfig

# The name appears in reasons.
BEGIN = Source("no capabilities", artifact_types.OPTIMIZATIONS, (SourceFile(optimize.FILE, optimize.NOTHING),))
# Options that take time and do not change which operators a provider takes.
SPEED_OPTIONS = frozenset({"htp_graph_finalization_optimization_mode"})
# Each round adds two nodes to the graph, even if it discovers nothing.
MOST_ROUNDS = 20


def search_of(context: ResolveContext, target: Target, analyze: AnalyzeConfig | Skip) -> Search:
    """Return the search for *target*.

    Raises:
        UsageError: when the folder for the user's own tables is not a folder.
    """
    if isinstance(analyze, Skip):
        return Search(BEGIN)
    asks = analyze.target.asks
    tables = table_paths(target, asks=asks)
    # The file names in it decide which tables exist.
    folder = None if asks else rule_folder(target)
    looked_at = (*tables, *([] if folder is None else [folder]))
    for path in looked_at:
        before_reading(path)
    return Search(
        begin=BEGIN,
        rounds=_rounds(context) if analyze.analyze.propose else 0,
        refuses_unsupported=not _allows_unsupported(context),
        tables=support_of(tuple(path for path in tables if path.is_file())),
        looked_at=tuple(path for path in looked_at if path.exists()),
        absent=tuple(path for path in looked_at if not path.exists()),
    )


def analyze_config(
    context: ResolveContext,
    target: Target,
    optimize: OptimizeConfig | Skip,
    quantize: tuple[QuantizeConfig, ...] | Skip,
    *,
    compile_: CompileConfig | Skip,
    standard_only: bool,
) -> AnalyzeConfig | Skip:
    """Return the config of analyze; *standard_only* as for the config of optimize.

    The provider is asked with the options that it compiles with.
    """
    wanted = context.overrides.analyze
    if wanted is False:
        return Skip("--no-analyze was given")
    if wanted is None and not context.recipe.auto:
        return Skip("auto is false in the recipe")
    # If a stage of the recipe changes the model in between, discoveries do not apply to the model that optimize reads.
    proposes = not isinstance(optimize, Skip) and _rounds(context) > 0 and "analyze" not in context.recipe.stages
    return AnalyzeConfig(
        analyze=AnalyzeFields(propose=proposes),
        target=analyze_target(
            target,
            complete_options(target, {}) if isinstance(compile_, Skip) else compile_.compile.provider_options,
            standard_only=standard_only and proposes,
        ),
        optim={}
        if isinstance(optimize, Skip)
        else {name: context.recipe.optim[name] for name in ASKED_ABOUT if name in context.recipe.optim},
        quant=None if isinstance(quantize, Skip) else _quantized_to(quantize[-1]),
    )


def analyze_target(target: Target, options: Mapping[str, str], *, standard_only: bool) -> AnalyzeTarget:
    """Return the target of an analysis, which asks the provider with *options* if it is installed.

    Raises:
        UsageError: the configuration names an invalid environment for the provider.
    """
    if not can_be_asked(target):
        return AnalyzeTarget(target.ep.name, target.device, standard_domain_only=standard_only)
    kept = {name: value for name, value in compile_options(target, options).items() if name not in SPEED_OPTIONS}
    return AnalyzeTarget(target.ep.name, target.device, standard_only, asks=True, provider_options=kept)


def notices(target: Target, analyze: AnalyzeConfig | Skip, search: Search) -> Iterator[str]:
    """Yield what the user should know about the search before it runs."""
    if not isinstance(analyze, Skip) and not analyze.target.asks and search.tables is None:
        yield (
            f"There is no table of what {target.ep.name} ({target.device}) takes, and it is not installed here, so"
            " nothing can be said of the model's operators, and no optimizations are proposed."
        )


def _rounds(context: ResolveContext) -> int:
    now = context.overrides.max_optim_iterations
    if now is not None and not 0 <= now <= MOST_ROUNDS:
        raise UsageError(f"max_optim_iterations is a number from 0 to {MOST_ROUNDS}, not {now}.")
    return context.recipe.max_optim_iterations if now is None else now


def _allows_unsupported(context: ResolveContext) -> bool:
    return context.overrides.allow_unsupported_nodes or context.recipe.allow_unsupported_nodes


def support_of(paths: tuple[Path, ...]) -> Source | None:
    """Return the tables in *paths* as one source; None without any."""
    # The index is in the name because the first table that lists an operator wins.
    files = tuple(SourceFile(f"{index:03}_{path.name}", path) for index, path in enumerate(paths))
    return Source("operator support", artifact_types.SUPPORT, files) if files else None


def _quantized_to(quantize: QuantizeConfig) -> QuantizedTo | None:
    """Return the types after the last quantization; None if activation types, and so the nodes, do not change."""
    fields = quantize.quant
    if fields.mode == "fp16":
        return QuantizedTo("float16", "float16", excluded=fields.nodes_to_exclude or ())
    if fields.mode != "static" or fields.activation_type is None or fields.weight_type is None:
        return None
    return QuantizedTo(
        fields.activation_type,
        fields.weight_type,
        per_channel=bool(fields.per_channel),
        op_types=fields.op_types_to_quantize or quantize.target.op_types,
        excluded_op_types=fields.op_types_to_exclude or (),
        excluded=fields.nodes_to_exclude or (),
    )
