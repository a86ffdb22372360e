"""Measured operator support of execution providers: cases, verdicts, and their tables."""
