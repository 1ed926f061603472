"""Models of the projects that are measured on a GPU, and their calibration data."""
