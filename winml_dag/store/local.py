"""The store under its former name."""

from winml_dag.store.store import Store as LocalStore
from winml_dag.store.store import has_only as has_only

__all__ = ["LocalStore", "has_only"]
