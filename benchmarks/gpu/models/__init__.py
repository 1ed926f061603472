"""The source files that `benchmarks.gpu.project` copies into the projects: the models, and their calibration data."""
