"""From a label as the data has it to the number of the class as the model has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.errors import StageError
from winml_dag.explanation import explanation

_MAP = "Set eval.dataset.label_mapping (--label-mapping), such as {positive: 1}: a label of the data -> the class."
_MOST_NAMES = 12


@dataclass(frozen=True)
class Labels:
    """``mapping``: what the user says; ``names``: those that the model's config has, by class."""

    mapping: Mapping[str, int] | None
    names: Mapping[int, str]

    @classmethod
    def of(cls, mapping: Mapping[str, int] | None, processor: Path | None) -> Labels:
        """With the names in the ``config.json`` of the folder *processor*, if there is one."""
        config = None if processor is None else processor / "config.json"
        if config is None or not config.is_file():
            return cls(mapping, {})
        try:
            id2label = json.loads(config.read_text(encoding="utf-8")).get("id2label") or {}
            return cls(mapping, {int(number): str(name) for number, name in id2label.items()})
        except (ValueError, AttributeError) as error:
            raise StageError(
                f"The config.json of the model has no id2label that can be read: {explanation(error)}."
            ) from error

    def number(self, label: Any, where: str) -> int:
        """The class that *label* means; *where* says in a complaint whose label it is.

        Raises:
            StageError: for a label that is not known.
        """
        text = _text(label)
        if self.mapping is not None:
            if text not in self.mapping:
                raise self._unknown(text, where, "label_mapping", list(self.mapping))
            return self.mapping[text]
        by_name = {name: number for number, name in self.names.items()}
        folded = {name.casefold(): number for number, name in self.names.items()}
        if text in by_name:
            return by_name[text]
        if text.casefold() in folded:
            return folded[text.casefold()]
        if text.removeprefix("-").isdecimal():
            return int(text)
        raise self._unknown(text, where, "the model's config.json", list(by_name))

    def name(self, number: int) -> str:
        """As the model's config has it, else as the user says; a class without a name is called by its number."""
        said = {} if self.mapping is None else {at: name for name, at in self.mapping.items()}
        return {**said, **self.names}.get(number, str(number))

    def _unknown(self, text: str, where: str, place: str, known: Sequence[str]) -> StageError:
        if not known:
            return StageError(f"The label {text!r} of {where} is no number, and the model has no names.", advice=_MAP)
        names = ", ".join(known[:_MOST_NAMES]) + (", ..." if len(known) > _MOST_NAMES else "")
        return StageError(f"The label {text!r} of {where} is not in {place}, which has: {names}.", advice=_MAP)


def _text(label: Any) -> str:
    """Numbers are numbers in whatever form a file has them: 1, 1.0, true and "1"."""
    if isinstance(label, bool):
        return str(int(label))
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip()
