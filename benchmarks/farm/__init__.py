"""A scheduler, workers that sleep instead of compiling, and a driver, each in its own process (`measurements/farm.py`)."""
