"""probe: whether an execution provider takes an operator, found out by letting it try."""
