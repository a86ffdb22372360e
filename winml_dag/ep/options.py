"""Provider options of a target: check the given ones, and add the provider's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping

from winml_dag.ep.provider import WHOLE_NUMBER, Option, Target, nearest
from winml_dag.errors import UsageError


def complete_options(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """Return *given*, checked, with the defaults of *target*: everything for a compile or session but session extras.

    Raises:
        UsageError: a name is unknown or a value invalid (with the nearest spelling), or values contradict each other.
    """
    given = _without_device_type(target, given)
    table = target.ep.option_table(target.device)
    if table is not None:
        for name, value in given.items():
            _check(target, table, name, value)
    return dict(sorted(target.ep.with_defaults(target.device, given).items()))


def compile_options(target: Target, options: Mapping[str, str]) -> dict[str, str]:
    """Return the *options* that can change a compiled model, for the key of a compile."""
    table = target.ep.option_table(target.device) or {}
    return {name: value for name, value in options.items() if name not in table or not table[name].run_time}


def _without_device_type(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """Remove device_type, which winml-cli's configurations set in addition to the device; it must be the same."""
    kept = dict(given)
    if "device_type" not in kept or target.ep.takes_device_type():
        return kept
    said = kept.pop("device_type")
    if said.lower() != target.device:
        raise UsageError(
            f"Provider option device_type {said!r} contradicts device {target.device!r}.",
            advice="Leave the option out.",
        )
    return kept


def _check(target: Target, table: Mapping[str, Option], name: str, value: str) -> None:
    option = table.get(name)
    if option is None:
        if not table:
            raise UsageError(f"{target.ep.name} has no provider options, but {name!r} is given.")
        for other in target.ep.devices:
            if name in (target.ep.option_table(other) or ()):
                raise UsageError(f"Provider option {name!r} is for the {other}, not for device {target.device!r}.")
        usable = (known for known, entry in table.items() if not entry.refusal)
        raise UsageError(f"{target.ep.name} has no provider option {name!r}.", advice=nearest(name, usable))
    if option.refusal:
        raise UsageError(f"Provider option {name!r} cannot be set: {option.refusal}.", advice="Leave it out.")
    if option.values and value not in option.values:
        raise UsageError(f"Provider option {name!r} cannot be {value!r}.", advice=nearest(value, option.values))
    if option.pattern and not re.fullmatch(option.pattern, value):
        kind = "a whole number" if option.pattern == WHOLE_NUMBER else "a whole number above 0"
        raise UsageError(f"Provider option {name!r} must be {kind}, not {value!r}.")
