"""One module for each execution provider, which declares it as ``PROVIDER``; a file added here is found by itself."""
