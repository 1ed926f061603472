"""The trace step: from a model's source to a functional program that is proven to be the model.

`job` says what to trace (no torch), `run.trace` does it in a child process that is used for nothing else, and
`observe` looks up again what a trace depended on (standard library only).
"""

from trtbuild.stages.trace.job import TraceJob

__all__ = ["TraceJob"]
