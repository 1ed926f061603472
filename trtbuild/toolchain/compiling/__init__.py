"""Compile an engine job to a plan, and ask the parser which nodes it accepts.

Input: an `EngineJob` and its blobs. Output: a plan, a description of its layers, and statistics.
This folder uses all other folders of the toolchain except `running`.
"""
