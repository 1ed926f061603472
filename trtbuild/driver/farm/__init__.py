"""Engine steps and comparisons on the workers of a Dask scheduler: the driver's side and the worker's side.

`farm` runs one step or comparison, `limit` says when a step may start, `overview` lists the workers, and `connecting` opens
the connection. On the worker, `joining` starts processes, `performing` does a job, and `comparing` compares engines. Both
sides use `messages` (JSON), `labels` (Dask resources), `exchange` (the store that both reach) and `addresses` (schedulers
and TLS).
"""
