"""Compare the engines of a package with PyTorch on a GPU: in this process, or in a worker of a scheduler.

* `engines` chooses a GPU of this machine, and runs engines there.
* `gpu_kinds` describes a GPU with its NVIDIA driver and libraries. A verification chooses among the workers' GPUs by it.
* `job` is the job of one comparison, with its recipe. `comparing` does it.
* `versions` finds the versions of the libraries that compute the reference.
"""
