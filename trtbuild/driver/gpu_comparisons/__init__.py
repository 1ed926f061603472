"""Compare the engines of a package with PyTorch on a GPU: in this process, or in a worker of a scheduler.

* `engines` chooses a GPU of this machine, and runs engines there.
* `gpu_kinds` describes a GPU with its driver and its libraries, so that a driver can choose among the workers' GPUs.
* `job` is the job of one comparison, with its recipe. `comparing` does it.
"""
