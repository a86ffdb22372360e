"""Where a provider's device is emulated: its results count there, its times do not."""

from __future__ import annotations

import platform

from winml_dag.ep.registry import QNN, Target


def is_arm() -> bool:
    """Whether this is a machine of the kind that has Qualcomm's NPU; elsewhere QNN emulates it."""
    return platform.machine().lower() in ("arm64", "aarch64")


def is_emulated(target: Target) -> bool:
    """Whether it is QNN's NPU on a processor that no machine with that NPU has."""
    return target.ep == QNN and target.device == "npu" and not is_arm()
