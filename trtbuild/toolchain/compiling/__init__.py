"""From an engine job to a plan, and asking the parser what it takes.

In: an `EngineJob` and its blobs. Out: a plan, its layers, timings. Uses every other room of the toolchain but `running`.
"""
