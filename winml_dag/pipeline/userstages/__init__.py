"""Stages that a recipe declares: the meaning of their texts, as graph nodes, and where their files go."""
