"""Torch fills tables at their first use. No result changes if they are filled earlier, before workers are forked."""

from __future__ import annotations

import json
import subprocess
import sys

#: Exports, lowers and converts a module in a new process. With an argument, the tables are filled before that.
_PROGRAM = """
import hashlib, json, os, sys, threading
import torch
from trtbuild.driver.workers import handlers

def count():
    return [threading.active_count(), len(os.listdir("/proc/self/task"))]

handlers.prepare_torch()
before, gpu_checks = count(), []
torch.cuda.is_available = lambda: bool(gpu_checks.append(1))  # in a torch with CUDA, the real function loads the driver
if sys.argv[1:]:
    handlers.fill_tables()
checks_while_filling = len(gpu_checks)
maps = open("/proc/self/maps").read()
seen = {"before": before, "after": count(), "libraries": [n for n in ("nvinfer", "tensorrt", "libcuda.so") if n in maps]}
seen["GPU checks while filling"] = checks_while_filling

from trtbuild.stages.convert.conversion import convert
from trtbuild.stages.lower.run import lower
from trtbuild.stages.program import consistency
from trtbuild.stages.program.functional import functional
from trtbuild.stages.program.text import program_text
from trtbuild.stages.program.translations import decomposition_table

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu").eval()
rows = {"src": {0: torch.export.Dim("batch", min=2, max=8)}}
with torch.no_grad():
    exported = torch.export.export(layer, (torch.zeros(4, 5, 16),), dynamic_shapes=rows)
    traced_bytes = functional(exported)[0].to_bytes()
    lowered = lower(consistency.read_program(traced_bytes), "float32", decomposition_table())
    lowered_bytes = lowered.to_bytes()
    converted = convert(consistency.read_program(lowered_bytes), 20)
seen["digests"] = [hashlib.sha256(data).hexdigest() for data in (traced_bytes, lowered_bytes, converted.model)]
seen["text"] = program_text(lowered)
seen["GPU checks"] = len(gpu_checks)
print(json.dumps(seen))
"""


def _run(*arguments: str) -> dict[str, object]:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    seen: dict[str, object] = json.loads(process.stdout)
    return seen


def test_filled_tables_change_no_result_and_leave_no_thread() -> None:
    new, filled = _run(), _run("fill")
    assert filled["digests"] == new["digests"]
    assert filled["text"] == new["text"]
    assert filled["after"] == filled["before"]
    assert filled["libraries"] == []
    assert filled["GPU checks while filling"] == 0 and filled["GPU checks"]
