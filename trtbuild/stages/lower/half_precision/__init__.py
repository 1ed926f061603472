"""Lower to half precision: decide which calls compute in half and which in float32, and insert casts.

Uses `modules`, `propagate` and `request`.
"""
