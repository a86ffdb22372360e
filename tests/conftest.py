"""For all tests: the interrupt from the keyboard is on.

Shells switch it off for what they start in the background, and every process inherits that: builds under test could not
be interrupted then.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
