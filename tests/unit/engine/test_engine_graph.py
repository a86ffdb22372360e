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


def refusal(*nodes: Node, sources: tuple[Source, ...] = (WEIGHTS,)) -> str:
    with pytest.raises(UsageError) as refused:
        Graph.of(nodes, sources)
    return str(refused.value)


def test_two_nodes_of_one_name_are_refused() -> None:
    assert "'export'" in refusal(node("export"), node("export"))


def test_an_artifact_with_two_makers_is_refused_with_both() -> None:
    first = replace(node("first"), outputs={"out": "model"})
    second = replace(node("second"), outputs={"out": "model"})
    text = refusal(first, second)
    assert "'model'" in text
    assert "'first'" in text
    assert "'second'" in text


def test_an_artifact_that_is_also_a_source_is_refused() -> None:
    text = refusal(replace(node("export"), outputs={"out": "weights"}))
    assert "'weights'" in text
    assert "'export'" in text


def test_two_sources_of_one_name_are_refused() -> None:
    other = replace(WEIGHTS, files=(SourceFile("model.bin", Path("elsewhere.bin")),))
    text = refusal(node("export", "weights"), sources=(WEIGHTS, other))
    assert text == "Two sources have the name 'weights'."


def test_the_same_source_may_be_given_twice() -> None:
    assert list(Graph.of([node("export", "weights")], (WEIGHTS, WEIGHTS)).sources) == ["weights"]


def test_an_input_that_nothing_makes_is_refused() -> None:
    text = refusal(node("optimize", "exprt.out"), node("export"))
    assert "'optimize'" in text
    assert "'exprt.out'" in text


def test_an_unknown_input_slot_is_refused() -> None:
    text = refusal(replace(node("optimize"), inputs={"modle": "weights"}))
    assert "'optimize'" in text
    assert "'modle'" in text


def test_an_unknown_output_slot_is_refused() -> None:
    text = refusal(replace(node("optimize"), outputs={"modle": "model"}))
    assert "'optimize'" in text
    assert "'modle'" in text


def test_a_missing_input_is_refused_unless_it_is_optional() -> None:
    needy = Node("optimize", stage("optimize", ["model"]), {}, {})
    assert "'model'" in refusal(needy)
    content = replace(needy.stage, inputs={"model": InputSlot(frozenset({TEXT}), required=False)})
    assert Graph.of([replace(needy, stage=content)]).nodes[0].id == "optimize"


def test_a_kind_that_a_stage_does_not_take_is_refused_with_the_reason_of_its_declaration() -> None:
    slot = InputSlot(frozenset({"onnx"}), refusals={TEXT: "words cannot be optimized"})
    reader = Node("optimize", replace(stage("optimize"), inputs={"model": slot}), {}, {"model": "weights"})
    assert refusal(reader) == "optimize cannot take 'weights' (text): words cannot be optimized."


def test_a_kind_without_a_reason_of_its_own_is_refused_with_what_is_taken() -> None:
    slot = InputSlot(frozenset({"onnx", "zip"}))
    reader = Node("optimize", replace(stage("optimize"), inputs={"model": slot}), {}, {"model": "weights"})
    assert "it takes: onnx, zip" in refusal(reader)


def test_a_node_may_put_out_another_kind_than_its_stage_declares() -> None:
    maker = replace(node("quantize"), kinds={"out": "half"})
    text = refusal(maker, node("compile", "quantize.out"))
    assert "'quantize.out' (half)" in text


def test_a_cycle_is_refused_along_the_way_of_the_data() -> None:
    text = refusal(node("a", "c.out"), node("b", "a.out"), node("c", "b.out"), node("d", "c.out"))
    path = text.removeprefix("These stages wait for each other: ").removesuffix(".").split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all(pair in {("a", "b"), ("b", "c"), ("c", "a")} for pair in pairwise(path))


def test_a_node_that_reads_itself_is_refused() -> None:
    assert "a -> a" in refusal(node("a", "a.out"))


@st.composite
def shuffled_nodes(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 8))):
        makers = draw(st.lists(st.sampled_from(nodes), max_size=3, unique_by=id)) if nodes else []
        nodes.append(node(f"n{number}", *(maker.output("out") for maker in makers)))
    return draw(st.permutations(nodes))


@properties
@given(shuffled_nodes())
def test_every_node_comes_after_those_that_it_needs(nodes: list[Node]) -> None:
    graph = Graph.of(nodes)
    place = {found.id: number for number, found in enumerate(graph.nodes)}
    assert len(place) == len(nodes)
    assert all(place[maker.id] < place[found.id] for found in graph.nodes for maker in graph.needs(found))


@properties
@given(shuffled_nodes())
def test_downstream_is_whatever_a_node_can_reach(nodes: list[Node]) -> None:
    graph = Graph.of(nodes)
    reached: dict[str, set[str]] = {found.id: set() for found in graph.nodes}
    for reader in reversed(graph.nodes):
        for maker in graph.needs(reader):
            reached[maker.id] |= {reader.id} | reached[reader.id]
    assert {found.id: graph.downstream(found.id) for found in graph.nodes} == reached
