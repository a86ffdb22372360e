"""``python -m winml_dag`` is ``winml-dag``."""

from __future__ import annotations

import signal

# While all else is imported there is nothing to end and nothing to say: an interrupt just ends the process, where
# Python would show what it was importing. One that whoever started us has switched off stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from winml_dag.cli import main

if __name__ == "__main__":
    main()
