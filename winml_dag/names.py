"""Names of files: which are safe on every system, one rule for all names that others may have written.

Records, journals of output folders and models contain file names. All of them must reject a name that leaves its
folder, means a device, or that Windows would silently change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

# Device names of Windows, with any extension: opening one never opens a file.
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
# Lone surrogates stand for bytes that are not valid text: such a name has no UTF-8 encoding, and so no digest.
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"|?*\\/\ud800-\udfff]')

# In a recipe's folder: manifests of builds without an output folder, and files that are not yet complete.
KEPT = ".winml-dag"


@lru_cache(maxsize=4096)
def is_safe_part(part: str) -> bool:
    """Whether *part*, one part of a relative path, names a file or folder inside its parent on every system."""
    # This covers ".", ".." and names that end with a dot or a blank, which Windows drops.
    return part != "" and part[-1] not in ". " and not _FORBIDDEN.search(part) and not _DEVICE.fullmatch(part)


def parents(path: str) -> Iterator[str]:
    """The parent folders of *path*: ``a/b`` and ``a`` for ``a/b/c``."""
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")
