"""Worker processes, in which commands run user code and compilers.

Workers receive jobs as JSON, and send replies that name blobs in the store. `pool` and `worker_process` are the parent's
side of the protocol, `worker` is the child's side. `tasks` lists the kinds of jobs, and `handlers` does them. `forking` has
the processes from which workers are forked. This folder uses `gpu_comparisons`, `packages`, `project` and `configuration`.
"""
