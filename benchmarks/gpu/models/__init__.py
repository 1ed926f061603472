"""Source files of the projects that are measured on a GPU: models, and their calibration data."""
