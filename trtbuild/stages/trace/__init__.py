"""The trace step: make a program from a model's source, and prove that program and model compute the same results.

`job` describes a trace, and `run` executes it. `user_code.observe` observes the dependencies of an earlier trace again.
`job` and `user_code.observe` do not import torch.
"""

from trtbuild.stages.trace.job import TraceJob

__all__ = ["TraceJob"]
