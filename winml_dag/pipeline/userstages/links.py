"""What each input in a recipe's ``stages`` means: an output of another stage, of ours or the recipe's, or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from winml_dag.engine.stage import Stage
from winml_dag.pipeline.userstages.declared import NAME, Declared, Ours, is_ours
from winml_dag.pipeline.userstages.files import UserFiles
from winml_dag.pipeline.userstages.paths import OutputPaths
from winml_dag.recipe.document import Findings, Location
from winml_dag.recipe.schema import StageEntry
from winml_dag.recipe.spelling import did_you_mean, known_instead
from winml_dag.stages import kinds

_REFERENCE = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
# Inputs of ours that another stage may make. The others are settings as well: what they hold changes what a stage
# reads of its section, and the recipe has a field for each.
_REWIRABLE = {"model", "reference", "ranges"}


class Links:
    """Every input of every entry, by name in the graph.

    Attributes:
        inputs: by stage of the user's and slot.
        rewired: by stage of ours and slot.
        kinds: of the user's outputs that a stage of ours reads, by (stage, slot): what it takes them for.
    """

    def __init__(
        self,
        declared: Declared,
        ours: Mapping[str, Ours],
        outputs: OutputPaths,
        files: UserFiles,
        findings: Findings,
    ) -> None:
        self.inputs: dict[str, dict[str, str]] = {}
        self.rewired: dict[str, dict[str, str]] = {}
        self.kinds: dict[tuple[str, str], str] = {}
        self._ours = ours
        self._outputs = outputs
        self._files = files
        self._findings = findings
        for name, entry in declared.stages.items():
            if is_ours(entry) and name in ours:
                self.rewired[name] = self._rewired(name, entry)
            elif not is_ours(entry):
                self.inputs[name] = self._of_stage(name, entry)

    def _of_stage(self, stage: str, entry: StageEntry) -> dict[str, str]:
        found: dict[str, str] = {}
        for slot, text in entry.inputs.items():
            location: Location = ("stages", stage, "inputs", slot)
            if not NAME.fullmatch(slot):
                self._findings.add(location, "a name has letters, digits, - and _ only", about_key=True)
            elif (name := self._meaning(location, text)) is not None:
                found[slot] = name
        return found

    def _meaning(self, location: Location, text: str) -> str | None:
        match = _REFERENCE.fullmatch(text)
        if match and match[1] in self._outputs.paths:
            return self._user_output(location, text, match[1], match[2])
        if match and match[1] in self._ours:
            return self._our_output(location, text, self._ours[match[1]], match[2])
        source = self._files.source(location, text)
        return None if source is None else source.name

    def _user_output(self, location: Location, text: str, stage: str, slot: str) -> str | None:
        slots = self._outputs.paths[stage]
        if slot in slots:
            return text
        self._findings.add(location, f"{stage} has no output {slot!r}{known_instead(slot, slots)}")
        return None

    def _our_output(self, location: Location, text: str, stage: Ours, slot: str) -> str | None:
        slots = stage.stage.outputs
        if stage.left_out is not None:
            self._findings.add(location, f"{text} is not made in this build: {stage.left_out}")
        elif slot not in slots:
            self._findings.add(location, f"{stage.stage.name} has no output {slot!r}{known_instead(slot, slots)}")
        else:
            return f"{stage.id}.{slot}"
        return None

    def _rewired(self, stage: str, entry: StageEntry) -> dict[str, str]:
        ours = self._ours[stage]
        at: Location = ("stages", stage)
        if ours.left_out is not None:
            self._findings.add(at, f"there is no {stage} in this build: {ours.left_out}", about_key=True)
            return {}
        for field in sorted(entry.model_fields_set - {"inputs"}):
            message = f"{stage} is one of our stages: an entry of that name has only inputs"
            self._findings.add((*at, field), message, about_key=True)
        if not entry.inputs:
            self._findings.add(at, f"{stage} is one of our stages: say with inputs where it reads from")
        found: dict[str, str] = {}
        for slot, text in entry.inputs.items():
            if (name := self._rewired_input((*at, "inputs", slot), ours.stage, slot, text)) is not None:
                found[slot] = name
        return found

    def _rewired_input(self, location: Location, stage: Stage, slot: str, text: str) -> str | None:
        can = sorted(_REWIRABLE & stage.inputs.keys() - ({"model"} if stage.name == "export" else set()))
        if slot not in can:
            what = (
                "has no input" if slot not in stage.inputs else "takes from the settings of the recipe alone its input"
            )
            instead = known_instead(slot, can) if can else ""
            self._findings.add(location, f"{stage.name} {what} {slot!r}{instead}", about_key=True)
            return None
        match = _REFERENCE.fullmatch(text)
        if match and match[1] in self._outputs.paths:
            name = self._user_output(location, text, match[1], match[2])
            if name is not None:
                accepts = stage.inputs[slot].accepts or frozenset({kinds.FLOAT_MODEL})
                kind = kinds.FLOAT_MODEL if kinds.FLOAT_MODEL in accepts else min(accepts)
                self.kinds[match[1], match[2]] = kind
            return name
        if match and match[1] in self._ours:
            return self._our_output(location, text, self._ours[match[1]], match[2])
        known = [*self._outputs.paths, *self._ours]
        near = did_you_mean(match[1], known) if match else ""
        self._findings.add(location, f"{text!r} is no output of a stage (stage.output){near}")
        return None


def taken_files(recipe: Path, folder: Path) -> dict[str, str]:
    """Files that no output may be, as :class:`OutputPaths` wants them."""
    return {recipe.name: "the recipe itself"} if recipe.parent.resolve() == folder else {}
