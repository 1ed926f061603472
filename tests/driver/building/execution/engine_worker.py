"""Answer the jobs of engine steps without compiling anything: ``engine_worker.py FOLDER COUNT STORE``.

Each job creates a file that is named after its GPU, and removes it at the end. If the file already exists, another job uses
this GPU, so the new job fails. Each job waits until `COUNT` jobs have run at the same time. The engine that a job returns
is the name of its GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from trtbuild.core.values.codec import encode
from trtbuild.driver.workers.results import Result
from trtbuild.store.local.local import LocalStore

#: A job fails if it has waited this long for other jobs.
TIMEOUT_S = 30.0


def _do_job(folder: Path, count: int, store: LocalStore) -> dict[str, object]:
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    lock, together, deadline_s = folder / f"gpu-{gpu}", folder / "together", time.monotonic() + TIMEOUT_S
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return {"ok": False, "error": {"type": "ToolchainError", "text": f"two jobs use GPU {gpu}"}}
    while not together.exists():
        if len(list(folder.glob("gpu-*"))) >= count:
            together.touch()
        elif time.monotonic() > deadline_s:
            return {"ok": False, "error": {"type": "ToolchainError", "text": f"fewer than {count} jobs ran at once"}}
        time.sleep(0.01)
    with open(folder / "jobs", "a") as jobs:
        jobs.write(f"{gpu} {os.getpid()}\n")
    lock.unlink()
    outputs = {"plan": store.put_bytes(gpu.encode()), "layers": store.put_bytes(b"{}")}
    return {"ok": True, "result": encode(Result(outputs))}


if __name__ == "__main__":
    for _ in sys.stdin:
        answer = _do_job(Path(sys.argv[1]), int(sys.argv[2]), LocalStore(Path(sys.argv[3])))
        print(json.dumps({**answer, "duration_s": 0.1, "peak_rss_bytes": 0}), flush=True)
