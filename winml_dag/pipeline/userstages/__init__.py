"""Stages that a recipe declares itself: what its texts mean, as nodes of the graph, and where their files go."""
