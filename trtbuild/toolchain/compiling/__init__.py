"""Compile an engine job to a plan, and ask the parser which nodes it accepts.

In: an `EngineJob` and its blobs. Out: a plan, its layers, timings. Uses every other room of the toolchain except
`running`.
"""
