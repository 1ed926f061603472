"""The source files that are copied into the projects: the models, and their calibration data."""
