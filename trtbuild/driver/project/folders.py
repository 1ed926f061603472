"""The directories of a project's local state, relative to the project."""

from __future__ import annotations

#: The directory of a project's local state. It may be deleted, and is never shared.
STATE_FOLDER = ".trtbuild"

#: The directory of TensorRT's timing caches, which have the measured times of kernels.
TIMING_FOLDER = f"{STATE_FOLDER}/timing"

#: The directory of the workers' logs, with one file for each step.
LOG_FOLDER = f"{STATE_FOLDER}/logs"
