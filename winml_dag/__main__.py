"""``python -m winml_dag`` is ``winml-dag``."""

from __future__ import annotations

import signal

# During imports there is nothing to clean up or report: an interrupt just ends the process, where Python would print a
# traceback of the import. If the parent process has disabled interrupts, they stay disabled.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from winml_dag.cli import main

if __name__ == "__main__":
    main()
