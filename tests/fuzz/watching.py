"""``python -m tests.fuzz.watching --minutes N --seed S``: edits a project at random while ``trtbuild watch`` runs.

The watcher is killed and started again at random. In each round, a build that uses the watcher must have the same outputs
as a clean build with another cache. At the end, all processes of the watcher must end. After each round, the program prints
the memory of the watcher and its processes. The test suite does not run this program.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.driver.watching.watched import Watch
from tests.faults.processes import descendants, wait_until_gone

LAYERS = ("ReLU", "Tanh", "ELU", "SiLU", "Sigmoid", "Softplus", "no_such_layer")


def main() -> int:
    """Run rounds until the time is over or a round fails. The exit code is 1 if a round has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, end = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    folder = Path(tempfile.mkdtemp(prefix="trtbuild-watching-"))
    watch = Watch(folder)
    watch.start()
    rounds, problems = 0, []
    while time.monotonic() < end and not problems:
        rounds += 1
        _edit(watch, rng)
        if rng.random() < 0.2:
            _kill_and_start(watch)
        problems = _differences(watch, folder / "clean", rng)
        print(f"round {rounds}: {_memory_mb(watch):.0f} MB; {problems or 'equal'}", flush=True)
    watch.end()
    shutil.rmtree(folder)
    print(f"seed {options.seed}: {rounds} rounds, {len(problems)} problems")
    return 1 if problems else 0


def _edit(watch: Watch, rng: random.Random) -> None:
    """Save or remove the model's source several times. The last source has no error; the others may have one."""
    for _ in range(rng.randrange(1, 12)):
        source = watch.project / "net.py"
        if rng.random() < 0.1:
            source.unlink(missing_ok=True)
        elif rng.random() < 0.1:
            source.write_text("def build(:\n")
        else:
            watch.edit(rng.choice(LAYERS))
        time.sleep(rng.choice((0.0, 0.01, 0.1, 1.0)))
    watch.edit(rng.choice(LAYERS[:-1]))


def _kill_and_start(watch: Watch) -> None:
    pids = descendants(watch.pid)
    os.kill(watch.pid, signal.SIGKILL)
    if watch.process is not None:
        watch.process.wait()
    wait_until_gone(pids)
    watch.start()


def _differences(watch: Watch, clean: Path, rng: random.Random) -> list[str]:
    """Build with the watcher, then without it in a copy of the project with an empty cache. Return the differences."""
    built = watch.build("--json", *(["--force"] if rng.random() < 0.2 else []))
    if built.returncode:
        return [f"exit {built.returncode}: {built.stderr[-2000:]}"]
    shutil.rmtree(clean, ignore_errors=True)
    clean.mkdir()
    for name in ("trtbuild.yaml", "net.py"):
        shutil.copy(watch.project / name, clean / name)
    # with an empty XDG_RUNTIME_DIR, the build does not find the watcher
    clean_build = watch.build("--json", "-C", str(clean), XDG_RUNTIME_DIR="")
    if clean_build.returncode:
        return [f"clean: exit {clean_build.returncode}: {clean_build.stderr[-2000:]}"]
    keys, clean_keys = (
        {step["id"]: step["key"] for step in json.loads(process.stdout)["steps"]} for process in (built, clean_build)
    )
    files, clean_files = _files(watch.project / "dist/net"), _files(clean / "dist/net")
    problems = ["other keys"] if keys != clean_keys else []
    return problems + sorted(
        name for name in files.keys() | clean_files.keys() if files.get(name) != clean_files.get(name)
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _memory_mb(watch: Watch) -> float:
    """The memory of the watcher and its processes, in MB. Memory that processes share counts once (PSS)."""
    total = 0
    for pid in (watch.pid, *descendants(watch.pid)):
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except psutil.Error:
            continue  # the process has just ended
    return total / 1e6


if __name__ == "__main__":
    sys.exit(main())
