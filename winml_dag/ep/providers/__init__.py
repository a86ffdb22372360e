"""One module for each execution provider, which declares it as ``PROVIDER``: a file that is put here is known."""
