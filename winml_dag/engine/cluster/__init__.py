"""Runs on other machines: who may run what, what a machine is told of a run and tells of it. It knows no dask: that is
below :mod:`winml_dag.pipeline.cluster`, as is what machines say of themselves.
"""
