"""winml_dag: a declarative DAG build system with a content-addressed cache for deployment-ready ONNX models."""

from __future__ import annotations

__version__ = "0.1.0"
