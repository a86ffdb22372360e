"""The file between analyze and the next optimize: equal bytes for equal discoveries, and its readers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.errors import StageError
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages import optimize
from winml_dag.stages.optimize import Discovered

FORMED = next(name for name, capability in CATALOG.items() if capability.makes)
FORMLESS = next(name for name, capability in CATALOG.items() if not capability.makes)


def test_empty_discovery_equals_initial_file(tmp_path: Path) -> None:
    Discovered.of((), standard_domain_only=True).write(tmp_path / optimize.FILE)
    assert (tmp_path / optimize.FILE).read_bytes() == optimize.NOTHING.read_bytes()
    assert Discovered.read(optimize.NOTHING) == Discovered()
    # It matters only to a capability with several forms.
    assert Discovered.of([FORMED], standard_domain_only=True).standard_domain_only
    assert not Discovered.of([FORMLESS], standard_domain_only=True).standard_domain_only


@settings(deadline=None, max_examples=30)
@given(st.sets(st.sampled_from(sorted(CATALOG))), st.booleans())
def test_discovered_roundtrips(tmp_path_factory: pytest.TempPathFactory, names: set[str], only: bool) -> None:
    path = tmp_path_factory.mktemp("discovered") / optimize.FILE
    found = Discovered.of(names, standard_domain_only=only)
    found.write(path)
    assert Discovered.read(path) == found
    assert found.capabilities == names


@pytest.mark.parametrize("text", ["[]", '{"gelu_fusion": false}', '{"gelu_fusion": 1}'])
def test_invalid_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / optimize.FILE).write_text(text)
    with pytest.raises(StageError, match="capabilities that are true"):
        Discovered.read(tmp_path / optimize.FILE)
