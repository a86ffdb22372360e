"""A cluster of workers, by way of dask: what a worker says of itself, the worker, and the way to it from a build."""
