"""User code: its files, its frames in tracebacks, and advice about its errors.

This folder imports no other folder of the trace.
"""
