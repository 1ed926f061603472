"""Lowering to half precision: which calls compute in it, which stay in float32, and the casts between them.

Uses `modules`, `propagate` and `request`.
"""
