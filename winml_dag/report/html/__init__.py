"""The report as one file for a browser: no network, no server, nothing beside it."""

from winml_dag.report.html.page import html_of

__all__ = ["html_of"]
