"""Worker processes: user code and compilers run in them, never in the driver.

In: jobs, as JSON. Out: replies that name blobs in the store. `pool` is the parent's side of the protocol, `worker` the
child's side. `handlers` runs the stages. Uses `packages` and `project`.
"""
