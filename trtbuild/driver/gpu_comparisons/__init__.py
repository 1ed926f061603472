"""Run the engines of a package on a GPU, of this machine or of a worker, and compare them with PyTorch or onnxruntime.

* `engines` chooses a GPU of this machine, and runs engines there.
* `gpu_kinds` describes a GPU with its NVIDIA driver and libraries. A verification uses it to choose GPUs of workers.
* `job` is the job of one comparison, with its recipe. `comparing` does the job.
* `versions` finds the versions of the libraries that compute the reference.
"""
