"""Sweeps: the cells of a matrix as one graph, what became of them, and which of them is best."""
