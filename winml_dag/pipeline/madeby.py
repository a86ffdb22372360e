"""What this program calls itself in records, manifests and signatures."""

from __future__ import annotations

from winml_dag import __version__

MADE_BY = f"winml_dag {__version__}"
