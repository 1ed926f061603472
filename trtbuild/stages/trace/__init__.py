"""The trace step: make a functional program from a model's source, and prove that the program and the model compute the
same results.

`job` describes a trace, and does not import torch. In a build, `run.trace` runs in a child process that does nothing else.
`user_code.observe` looks up the dependencies of a trace again. It does not import torch, either.
"""

from trtbuild.stages.trace.job import TraceJob

__all__ = ["TraceJob"]
