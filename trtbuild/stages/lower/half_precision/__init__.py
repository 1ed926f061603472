"""Lower to half precision: decide which calls compute in half and which in float32, and insert casts."""
