from __future__ import annotations

import pytest

from winml_dag.errors import StageError
from winml_dag.stages.export.outputs import OutputChoice, choose_outputs

PRODUCED = ("last_hidden_state", "pooler_output")


def test_the_usual_outputs_that_the_model_has_are_exported() -> None:
    assert choose_outputs(PRODUCED, (), ("text_embeds", "last_hidden_state")) == (
        OutputChoice("last_hidden_state", "last_hidden_state"),
    )


def test_outputs_are_picked_by_name_in_the_recipes_order() -> None:
    chosen = choose_outputs(PRODUCED, ("pooler_output", "last_hidden_state"), ())
    assert [choice.attribute for choice in chosen] == ["pooler_output", "last_hidden_state"]


def test_names_of_the_recipes_own_are_given_in_order() -> None:
    assert choose_outputs(PRODUCED, ("embedding",), ()) == (OutputChoice("embedding", "last_hidden_state"),)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("a", "b", "c"), "3 outputs, but the model has 2"),
        (("pooler_output", "embedding"), "names embedding"),
        (("a", "a"), "twice"),
        ((), "none of the outputs"),
    ],
)
def test_what_cannot_be_told_is_refused(asked: tuple[str, ...], words: str) -> None:
    with pytest.raises(StageError, match=words):
        choose_outputs(PRODUCED, asked, ("logits",))
