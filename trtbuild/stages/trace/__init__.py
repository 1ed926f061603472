"""The trace step: makes a functional program from a model's source, and proves that it computes the same.

`job` describes the trace (without torch). `run.trace` runs it in a child process that does nothing else. `observe`
looks up a trace's dependencies again (standard library only).
"""

from trtbuild.stages.trace.job import TraceJob

__all__ = ["TraceJob"]
