"""User code: its files, its frames in tracebacks, and advice on its errors.

It imports no other folder of the trace.
"""
