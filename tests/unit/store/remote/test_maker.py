"""Who made a record: told from the machine and from what CI says, and never more than a terminal can show."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pytest

from winml_dag.errors import StoreError
from winml_dag.store.remote.trust import Maker, maker_here


def test_it_names_the_program_the_class_of_machine_and_versions_but_no_machine_and_no_user() -> None:
    maker = maker_here("winml_dag 1.0")

    assert (maker.builder, maker.run, maker.revision) == ("winml_dag 1.0", "", "")
    assert maker.host == f"{platform.system()} {platform.machine()}"
    assert maker.tools["python"] == platform.python_version()
    assert maker.tools["onnxruntime"] == version("onnxruntime")
    assert platform.node() not in str(maker)
    assert Maker.from_json(maker.to_json()) == maker


@pytest.mark.parametrize("address", ["https://x/\x1b[2J", "https://" + "x" * 1000], ids=["escape", "long"])
def test_a_run_whose_address_cannot_be_shown_is_not_named(address: str) -> None:
    assert maker_here("x", run="https://x/1", revision="abc").run == "https://x/1"
    assert maker_here("x", run=address).run == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"run": 1},
        {"run": "a\nb"},
        {"more": ""},
        {"tools": {"onnx": 1}},
        {"tools": {f"tool{number}": "1" for number in range(51)}},
        {"tools": []},
    ],
    ids=lambda changed: str(changed)[:20],
)
def test_what_is_told_in_another_way_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="Who made a record"):
        Maker.from_json({**Maker("x").to_json(), **changed})  # type: ignore[dict-item]
