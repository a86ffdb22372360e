"""For all tests: the interrupt from the keyboard is on, and no environment of the user's is named.

Shells switch it off for what they start in the background, and every process inherits that: builds under test could not
be interrupted then.
"""

from __future__ import annotations

import os
import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

for variable in ("WINML_DAG_CONFIG", "WINML_DAG_EP_ENVIRONMENTS", "WINML_DAG_SUPPORT_DIR", "WINMLCLI_RULES_DIR"):
    os.environ.pop(variable, None)
