"""Fill the tables of torch and of its ONNX exporter, before workers are forked.

Torch and onnxscript import modules and fill tables (decompositions, translations, rules for sizes) at their first use. A
worker that has done a job has these tables, too. This module runs no user code, and does not load TensorRT or CUDA's
driver. It leaves no thread, because threads do not run in a forked worker.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from types import SimpleNamespace
from typing import Any


def fill_tables() -> None:
    """Lower, write, read and convert a small program."""
    import torch

    from trtbuild.stages.convert.conversion import convert
    from trtbuild.stages.lower.run import lower
    from trtbuild.stages.program import consistency
    from trtbuild.stages.program.functional import functional
    from trtbuild.stages.program.text import program_text
    from trtbuild.stages.program.translations import OPSETS, decomposition_table

    bars: Any = SimpleNamespace(monitor_interval=0)
    with contextlib.suppress(ImportError):  # the exporter shows progress if tqdm is installed
        bars = importlib.import_module("tqdm").tqdm
    interval_s, bars.monitor_interval = bars.monitor_interval, 0  # otherwise tqdm starts a thread
    # torch.export asks whether there is a GPU. In a torch with CUDA, this loads CUDA's driver, which does not work after a
    # fork.
    is_available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    rows = {"input": {0: torch.export.Dim("rows", min=2, max=8)}}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(4, 2),), dynamic_shapes=rows)
            traced, _ = functional(exported)
            lowered = lower(consistency.read_program(traced.to_bytes()), "float32", decomposition_table())
            program_text(lowered)
            convert(consistency.read_program(lowered.to_bytes()), OPSETS[-1])
    finally:
        bars.monitor_interval, torch.cuda.is_available = interval_s, is_available
