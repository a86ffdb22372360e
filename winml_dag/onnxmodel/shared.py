"""Whether a compiled model shares its binary with others: QNN's emulator crashes when it loads such a one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary

# In the name of every binary that we put there for several models; so that of all others none is read.
SHARED = "_shared"

_CHUNK = 1 << 22
_LONGEST_NAME = 256


def shares_binary(model: Path, summary: ModelSummary) -> bool:
    """Whether the binary of *model* has graphs that are none of *summary*'s, going by the names of its own."""
    own = {context.partition for context in summary.ep_context}
    binaries = {context.sidecar for context in summary.ep_context if context.sidecar and SHARED in context.sidecar}
    # Names of graphs differ in their numbers only.
    pattern = re.compile(
        b"|".join(re.sub(rb"\d+", rb"\\d+", re.escape(name.encode())) for name in own if name) or b"$^"
    )
    return any(name.decode() not in own for binary in binaries for name in _found(model.parent / binary, pattern))


def _found(path: Path, pattern: re.Pattern[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    with path.open("rb") as handle:
        rest = b""
        while chunk := handle.read(_CHUNK):
            # A name may lie on the border of two chunks; cut short there it would look like another one.
            text = rest + chunk
            whole = len(text) - _LONGEST_NAME if len(chunk) == _CHUNK else len(text)
            found.update(match[0] for match in pattern.finditer(text) if match.start() < whole)
            rest = text[-_LONGEST_NAME:]
    return found
