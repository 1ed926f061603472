"""Compile engines, and compare them with PyTorch, on the workers of a Dask scheduler.

* The driver runs on the machine of the build. `opening` connects to the workers, `farm` sends a job and verifies the
  answer, `limit` decides when a step may start, and `overview` lists the workers.
* On a worker, `joining` starts the processes, `performing` does a job, and `comparing` compares engines.
* Both sides use `messages` (JSON), `labels` (Dask resources), `exchange` (the store that both reach) and `addresses`
  (schedulers and TLS).
"""
