"""All hostile graphs: small ones, each with one feature that other exporters produce and this package's does not."""

from __future__ import annotations

import hostile_control
import hostile_files
import hostile_forms
import hostile_old
import hostile_operators
import hostile_values
from netgraphs import Case


def cases() -> list[Case]:
    rooms = (hostile_forms, hostile_old, hostile_control, hostile_files, hostile_values, hostile_operators)
    return [case for room in rooms for registry in room.CASES for case in registry.cases]
