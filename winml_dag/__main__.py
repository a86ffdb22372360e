"""``python -m winml_dag`` is ``winml-dag``."""

from __future__ import annotations

from winml_dag.cli.main import main

if __name__ == "__main__":
    main()
