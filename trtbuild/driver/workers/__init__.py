"""Worker processes: user code and compilers run in them, never in the driver.

Workers receive jobs as JSON, and send replies that name blobs in the store. `pool` is the parent's side of the
protocol, `worker` is the child's side. `handlers` runs the stages. This package uses `packages` and `project`.
"""
