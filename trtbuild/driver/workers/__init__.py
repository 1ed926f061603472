"""Worker processes, in which commands run user code and compilers.

Workers receive jobs as JSON, and send replies that name blobs in the store. `pool` and `worker_process` run in the parent
process, `worker` runs in the child. `tasks` lists the kinds of jobs, and `handlers` does them. `forking` has the processes
from which workers are forked.
"""
