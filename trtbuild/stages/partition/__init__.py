"""The partition step: cutting a lowered program, and asking what takes each piece."""
