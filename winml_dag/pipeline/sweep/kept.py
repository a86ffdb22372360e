"""A cell with some nodes kept in higher precision: the fields of ``quant`` that a user would write for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from winml_dag.canonical import JsonValue
from winml_dag.pipeline.variant import Build, CompositeBuild, OnlyDeclared, Skip
from winml_dag.recipe.goal import Search
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.recipe.schema import Quant
from winml_dag.stages.sensitivity import RELIEF

SIXTEEN = "16 bits"
FLOAT = "float"
_FIELDS = {SIXTEEN: "node_overrides", FLOAT: "nodes_to_exclude"}


@dataclass(frozen=True)
class Keeping:
    """In what nodes are kept (:data:`SIXTEEN`, :data:`FLOAT`), and the integer type that stands for 16 bits."""

    kept: str
    wide: str = ""

    @property
    def suffix(self) -> str:
        """What the name of a cell gets behind the number of nodes that are kept."""
        return "in16" if self.kept == SIXTEEN else "in32"

    @property
    def field(self) -> str:
        """The field of ``quant`` that says so."""
        return _FIELDS[self.kept]

    @property
    def words(self) -> str:
        return RELIEF[self.field]

    def most(self, ranked: int) -> int:
        """How many of the nodes *ranked* can be kept: something has to be left to quantize."""
        return ranked if self.kept == SIXTEEN else ranked - 1


def keepings_of(build: Build | CompositeBuild | OnlyDeclared, search: Search) -> tuple[Keeping, ...] | str:
    """In what nodes of *build* are kept as *search* says, the first to be tried first; or why they cannot be searched
    at all, as a sentence.

    16 bits come first where the provider mixes widths: beside a node in float, others are quantized in other ways than
    beside a quantized one. They are of activations alone, so where weights are what is missing, only float helps.
    """
    if not isinstance(build, Build):
        return "it is of several components or of stages of its own, and nodes are ranked of one model alone"
    if build.declared is not None:
        return "its recipe has stages of its own between ours"
    if isinstance(build.quantize, Skip):
        return f"nothing is quantized: {build.quantize.reason}"
    if isinstance(build.validate, Skip):
        return f"nodes are ranked on the samples of validate: {build.validate.reason}"
    first = build.quantize[0]
    wide = SIXTEEN_BITS.get(str(first.quant.activation_type), "")
    has_room = first.quant.mode == "static" and bool(wide) and first.target is not None and first.target.mixes_widths
    if search.keep == "16-bit" and not has_room:
        return "search.keep is 16-bit, and nodes with 16 bits cannot stand among these"
    sixteen = (Keeping(SIXTEEN, wide),) if has_room and search.keep != "float" else ()
    return (*sixteen, Keeping(FLOAT)) if search.keep != "16-bit" else sixteen


def with_kept(loaded: LoadedRecipe, nodes: Sequence[str], keeping: Keeping) -> LoadedRecipe:
    """The recipe *loaded* with *nodes* kept as *keeping* says, besides those that it keeps itself."""
    recipe = loaded.recipe
    of_compile = recipe.compile if recipe.quant is None else None
    written = of_compile.quant_config if of_compile is not None else recipe.quant
    changed = Quant.from_dict(_with_nodes(written or Quant(), nodes, keeping))
    if of_compile is not None and of_compile.quant_config is not None:
        compiled = of_compile.model_copy(update={"quant_config": changed})
        return replace(loaded, recipe=recipe.model_copy(update={"compile": compiled}))
    return replace(loaded, recipe=recipe.model_copy(update={"quant": changed}))


def _with_nodes(quant: Quant, nodes: Sequence[str], keeping: Keeping) -> dict[str, JsonValue]:
    fields = quant.to_dict()
    if keeping.kept == FLOAT:
        excluded = [*(quant.nodes_to_exclude or ()), *nodes]
        return {**fields, "nodes_to_exclude": list(dict.fromkeys(excluded))}
    own = {name: types.model_dump(mode="json", exclude_none=True) for name, types in quant.node_overrides.items()}
    wide = {name: {**own.get(name, {}), "activation_type": keeping.wide} for name in nodes}
    return {**fields, "node_overrides": {**own, **wide}}
