"""Build and export a ViT in copies of a process that has imported torch and transformers.

Usage: ``python warm_export.py LAYERS HIDDEN IMAGE``, in a folder that has ``models/vit.py``. For each line of standard
input, a copy (fork) imports ``models/vit.py``, builds the module and exports it. The answer is one line: the seconds of
wall time and of CPU time.
"""

import os
import sys
import time

import torch
import transformers.models.vit.modeling_vit  # noqa: F401 (the library that the model imports)

sys.path.insert(0, "")


def export(layers: int, hidden: int, image: int) -> None:
    from models.vit import build

    batch = torch.export.Dim("batch", min=1, max=8)
    example = torch.randn(4, 3, image, image)
    torch.export.export(
        build(layers, hidden, image), (), {"pixel_values": example}, dynamic_shapes={"pixel_values": {0: batch}}
    )


def main(sizes: list[int]) -> None:
    """Answer each line of standard input."""
    for _ in sys.stdin:
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            export(*sizes)
            os._exit(0)
        _, status, usage = os.wait4(pid, 0)
        if status:
            sys.exit("the export failed")
        print(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
