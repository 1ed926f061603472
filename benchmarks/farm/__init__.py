"""The driver process of `measurements/farm.py`, and a preload that makes Dask workers sleep instead of compiling."""
