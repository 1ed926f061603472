"""Run the engines of a package on a GPU of this machine or of a worker, and compare them with PyTorch or onnxruntime.

* `engines` chooses a GPU of this machine, and runs engines on it.
* `gpu_kinds` describes a GPU with its NVIDIA driver and libraries. A verification chooses GPUs of workers by these facts.
* `job` has the job of one comparison and its recipe. `comparing` does the job.
* `versions` finds the versions of the libraries that compute the reference: the results that the engines should have.
"""
