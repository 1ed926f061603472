"""``python -m tests.fuzz.watching --minutes N --seed S``: edit a project at random under ``trtbuild watch``.

The watcher is killed and started again at random, and builds in other terminals use it. After each round the outputs must
be those of a clean build with another cache, and at the end no process is left over. The test suite does not run this
program. It prints the memory of the watcher and its processes after each round.
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
    """Run rounds until the time is over. The exit code is 1 if a round has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, end = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    folder = Path(tempfile.mkdtemp(prefix="trtbuild-watching-"))
    watch = Watch(folder)
    watch.start()
    rounds, problems = 0, []
    while time.monotonic() < end and not problems:
        rounds += 1
        _edit(watch, chance)
        if chance.random() < 0.2:
            _kill_and_start(watch)
        problems = _differences(watch, folder / "clean", chance)
        print(f"round {rounds}: {_memory_mb(watch):.0f} MB; {problems or 'equal'}", flush=True)
    watch.end()
    shutil.rmtree(folder)
    print(f"seed {options.seed}: {rounds} rounds, {len(problems)} problems")
    return 1 if problems else 0


def _edit(watch: Watch, chance: random.Random) -> None:
    """Save the model's source several times, sometimes with an error, and at the end without one."""
    for _ in range(chance.randrange(1, 12)):
        source = watch.project / "net.py"
        if chance.random() < 0.1:
            source.unlink(missing_ok=True)
        elif chance.random() < 0.1:
            source.write_text("def build(:\n")
        else:
            watch.edit(chance.choice(LAYERS))
        time.sleep(chance.choice((0.0, 0.01, 0.1, 1.0)))
    watch.edit(chance.choice(LAYERS[:-1]))


def _kill_and_start(watch: Watch) -> None:
    pids = descendants(watch.pid)
    os.kill(watch.pid, signal.SIGKILL)
    if watch.process is not None:
        watch.process.wait()
    wait_until_gone(pids)
    watch.start()


def _differences(watch: Watch, clean: Path, chance: random.Random) -> list[str]:
    """Build through the watcher, then in a copy of the project with an empty cache. Return the differences."""
    built = watch.build("--json", *(["--force"] if chance.random() < 0.2 else []))
    if built.returncode:
        return [f"exit {built.returncode}: {built.stderr[-2000:]}"]
    shutil.rmtree(clean, ignore_errors=True)
    clean.mkdir()
    for name in ("trtbuild.yaml", "net.py"):
        shutil.copy(watch.project / name, clean / name)
    alone = watch.build("--json", "-C", str(clean), XDG_RUNTIME_DIR="")
    if alone.returncode:
        return [f"clean: exit {alone.returncode}: {alone.stderr[-2000:]}"]
    keys = [{step["id"]: step["key"] for step in json.loads(done.stdout)["steps"]} for done in (built, alone)]
    packages = [folder / "dist" / "net" for folder in (watch.project, clean)]
    files = [
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in packages
    ]
    problems = ["other keys"] if keys[0] != keys[1] else []
    return problems + sorted(
        name for name in files[0].keys() | files[1].keys() if files[0].get(name) != files[1].get(name)
    )


def _memory_mb(watch: Watch) -> float:
    """The PSS of the watcher and its processes, in MB."""
    total = 0
    for pid in (watch.pid, *descendants(watch.pid)):
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total / 1e6


if __name__ == "__main__":
    sys.exit(main())
