"""Hostile and random graphs, compared with the original and with plain onnxruntime: the quick part of ``make
corpus``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from cells import CELLS, Cell, quick_cells
from compositions import Composition, compositions
from hostile import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge import QNN_OPTIONS
from netgraphs import Case, side_by_side
from runner import Corpus
from verdicts import broken

from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import QNN, Target

_ALL = cases()
_Asked = tuple[Case, tuple[Cell, ...]]
_FAMILIES = list(dict.fromkeys(case.family for case in _ALL))
# Families whose forms are those of nodes, whatever else is in the model.
_SIDE_BY_SIDE = {
    *("bias", "contrib", "control", "conv", "norms", "old", "picking", "recurrent", "shape-ops", "shared", "types"),
    *("unary", "values"),
}
_OF_RANDOM = [cell for cell in CELLS if cell.ep == "cpu" and cell.precision != "w4a32"]
_PARTS = 3  # a random network builds in every third precision, beginning with one of these
_NUMBERS = count()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    corpus = Corpus(tmp_path_factory.mktemp("corpus"), few=True)
    yield corpus
    corpus.close()


def test_qnn_options_match_those_of_plain_onnxruntime_runs() -> None:
    assert complete_options(Target(QNN, "npu"), {}) == QNN_OPTIONS


@pytest.mark.parametrize("family", _FAMILIES)
def test_hostile_graph_builds_or_is_refused_and_is_never_wrong(corpus: Corpus, family: str) -> None:
    cases = [(case, quick_cells(number)) for number, case in enumerate(_ALL) if case.family == family]
    if family in _SIDE_BY_SIDE:
        cases = _not_right_together(corpus, cases)
    found = corpus.judge([corpus.subject(*one) for one in cases])
    faults = list(broken(found, quality=False))
    assert not faults, "\n".join(faults)


def _not_right_together(corpus: Corpus, cases: list[_Asked]) -> list[_Asked]:
    """Return *cases* without those that come out right side by side in one model, which takes a third of the time."""
    left: list[_Asked] = []
    groups: dict[tuple[int, tuple[Cell, ...]], list[Case]] = {}
    for case, cells in cases:
        if case.is_plain():
            groups.setdefault((case.opset, cells), []).append(case)
        else:
            left.append((case, cells))
    together = corpus.judge([corpus.subject(side_by_side(group), cells) for (_, cells), group in groups.items()])
    for one, ((_, cells), group) in zip(together, groups.items(), strict=True):
        if one.verdict != "built" or any(broken([one], quality=False)):
            left += [(case, cells) for case in group]
    return left


@given(composition=compositions(), part=st.integers(0, _PARTS - 1))
@settings(
    max_examples=int(os.environ.get("CORPUS_EXAMPLES", "12")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_network_builds_with_correct_results(corpus: Corpus, composition: Composition, part: int) -> None:
    subject = corpus.subject(composition.case(f"composed-{next(_NUMBERS)}"), _OF_RANDOM[part::_PARTS])
    found = corpus.judge([subject])
    faults = [*broken(found, quality=False), *(f"{one.name}: {one.told}" for one in found if one.verdict != "built")]
    assert not faults, "\n".join(faults)
