"""Which names of files are safe on every system: a rule for all names that come out of what others may have written.

Records, journals of output folders and models name files. A name that leaves its folder, means a device, or that
Windows would silently change must be refused in each of them alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Names that Windows gives to devices, with any extension: opening one never opens a file.
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
# Lone surrogates stand for bytes that are no text: such a name has no UTF-8, and so no digest.
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"|?*\\/\ud800-\udfff]')


def is_safe_part(part: str) -> bool:
    """Whether *part*, one step of a relative path, names a file or folder right here, on every system."""
    # ".", ".." and names that end with a dot or a blank, which Windows drops, all end alike.
    return part != "" and part[-1] not in ". " and not _FORBIDDEN.search(part) and not _DEVICE.fullmatch(part)


def parents(path: str) -> Iterator[str]:
    """The folders that *path* lies in: ``a/b`` and ``a`` for ``a/b/c``."""
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")
