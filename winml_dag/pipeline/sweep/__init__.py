"""Sweeps: the cells of a matrix as one graph, their results, and the best of them."""
