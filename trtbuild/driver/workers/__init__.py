"""Worker processes: user code and compilers run in them, never in the driver.

In: jobs, as JSON. Out: replies that name blobs in the store. `pool` is the parent's side, `worker` the child's, `handlers`
the work. Uses `packages` and `project`.
"""
