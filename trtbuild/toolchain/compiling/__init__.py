"""Compile an engine job to a plan, and ask the parser which nodes it accepts.

This folder uses all other folders of the toolchain except `running`.
"""
