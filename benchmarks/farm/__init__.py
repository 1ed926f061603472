"""The processes of `measurements/farm.py`: a process that runs steps on Dask workers, and workers that only sleep."""
