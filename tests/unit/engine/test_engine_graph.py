"""An invalid graph is rejected with the names of the culprits before anything runs; a valid one is ordered."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from engine_samples import TEXT, node, properties, stage
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile
from winml_dag.errors import UsageError

WEIGHTS = Source("weights", TEXT, ())


ONLY_ONNX = InputSlot(frozenset({"onnx", "zip"}))
WITH_A_REASON = InputSlot(frozenset({"onnx"}), refusals={TEXT: "words cannot be optimized"})
OTHER_WEIGHTS = replace(WEIGHTS, files=(SourceFile("model.bin", Path("elsewhere.bin")),))


def reader(slot: InputSlot, **inputs: str) -> Node:
    return Node("optimize", replace(stage("optimize"), inputs={"model": slot}), {}, inputs)


PASSING_ON = replace(
    node("normalize", outputs=["model"]),
    stage=replace(stage("normalize", outputs=["model"]), inputs={"model": InputSlot(None)}),
    inputs={"model": "weights"},
    kinds={"model": TEXT},
)


def refusal(*nodes: Node, sources: tuple[Source, ...] = (WEIGHTS, Source("weights.bin", TEXT, ()))) -> str:
    with pytest.raises(UsageError) as refused:
        Graph.of(nodes, sources)
    return str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([node("export"), node("export")], ["'export'"]),
        (
            [node("first", outputs=["second.out"]), node("first.second")],
            ["'first.second.out'", "'first'", "'first.second'"],
        ),
        ([node("weights", outputs=["bin"])], ["'weights.bin'", "'weights'"]),
        ([node("optimize", "exprt.out"), node("export")], ["'optimize'", "'exprt.out'"]),
        ([replace(node("optimize"), inputs={"modle": "weights"})], ["'optimize'", "'modle'"]),
        ([reader(ONLY_ONNX)], ["'optimize'", "'model'"]),
        ([reader(ONLY_ONNX, model="weights")], ["it takes: onnx, zip"]),
        (
            [reader(WITH_A_REASON, model="weights")],
            ["optimize cannot take 'weights' (text): words cannot be optimized."],
        ),
        (
            [replace(node("quantize"), kinds={"out": "half"}), node("compile", "quantize.out")],
            ["'quantize.out' (half)"],
        ),
        ([PASSING_ON, reader(WITH_A_REASON, model="normalize.model")], ["optimize cannot take 'weights' (text)"]),
        ([node("a", "a.out")], ["a -> a"]),
    ],
    ids=[
        "two nodes of one name",
        "two makers of an artifact",
        "an artifact that is also a source",
        "an input that nothing makes",
        "an unknown input slot",
        "a missing input",
        "a kind that is not taken",
        "a kind with a reason of its own",
        "another kind than the stage declares",
        "a kind that a stage passes on",
        "a node that reads itself",
    ],
)
def test_invalid_graph_is_refused_with_names_of_culprits(nodes: list[Node], named: list[str]) -> None:
    text = refusal(*nodes)
    assert [name for name in named if name not in text] == []


def test_different_sources_of_one_name_are_refused() -> None:
    text = refusal(node("export", "weights"), sources=(WEIGHTS, OTHER_WEIGHTS))
    assert text == "Two sources have the name 'weights'."
    assert list(Graph.of([node("export", "weights")], (WEIGHTS, WEIGHTS)).sources) == ["weights"]


def test_optional_input_may_be_missing() -> None:
    assert Graph.of([reader(InputSlot(frozenset({TEXT}), required=False))]).nodes[0].id == "optimize"


def test_cycle_is_reported_in_data_order() -> None:
    text = refusal(node("a", "c.out"), node("b", "a.out"), node("c", "b.out"), node("d", "c.out"))
    path = text.removeprefix("These stages wait for each other: ").removesuffix(".").split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all(pair in {("a", "b"), ("b", "c"), ("c", "a")} for pair in pairwise(path))


@st.composite
def shuffled_nodes(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 8))):
        makers = draw(st.lists(st.sampled_from(nodes), max_size=3, unique_by=id)) if nodes else []
        nodes.append(node(f"n{number}", *(maker.output("out") for maker in makers)))
    return draw(st.permutations(nodes))


@properties
@given(shuffled_nodes())
def test_every_node_follows_its_dependencies(nodes: list[Node]) -> None:
    graph = Graph.of(nodes)
    place = {found.id: number for number, found in enumerate(graph.nodes)}
    assert len(place) == len(nodes)
    assert all(place[maker.id] < place[found.id] for found in graph.nodes for maker in graph.needs(found))


@properties
@given(shuffled_nodes())
def test_downstream_is_every_reachable_node(nodes: list[Node]) -> None:
    graph = Graph.of(nodes)
    reached: dict[str, set[str]] = {found.id: set() for found in graph.nodes}
    for reader in reversed(graph.nodes):
        for maker in graph.needs(reader):
            reached[maker.id] |= {reader.id} | reached[reader.id]
    assert {found.id: graph.downstream(found.id) for found in graph.nodes} == reached
