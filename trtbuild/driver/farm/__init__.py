"""Engine steps and comparisons on the workers of a Dask scheduler: the driver's side and the worker's side.

`opening` connects a build with its workers. `farm` runs one step or comparison, `limit` says when a step may start, and
`overview` lists the workers. On the worker, `joining` starts processes, `performing` does a job, and `comparing` compares
engines. Both sides use `messages` (JSON), `labels` (Dask resources), `exchange` (the store that both reach) and
`addresses` (schedulers and TLS).
"""
