"""Sends kill -9 to real builds at random moments, and checks the state after each kill.

After every kill, the cache must be valid, and the outputs must contain only complete files of known builds. After a few
kills, a build runs to its end, and its outputs must equal those of a build without kills.

A kill counts as *unfinished* if it left a file with bytes but without its final name: in the store's ``tmp/``, or
``.<name>.<random>.tmp`` beside an output. So the kill came after the first write of a file and before the file was renamed.

Half of the kills come at a uniformly random moment of a build. The others are *aimed*: after a random moment, the test
waits until such a file exists. So there are always enough unfinished kills.

Each round has other weights, and most rounds have another builder setting. So the kills hit the phases that write: weights,
engines, packages, outputs. The project is traced only once. ``python -m tests.faults.kills 1000`` runs only this test.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.processes import descendants, kill, wait_until_gone
from tests.projects import ADA_AND_AMPERE, WEIGHTS_FILE, copy_project, write_weights
from trtbuild.store.collection.check import verify
from trtbuild.store.local.local import LocalStore

#: The killed processes: only the driver (then its children must end by themselves), all processes, or only one worker.
VICTIMS = ("driver", "all", "worker")

LONGEST_BUILD_S = 300.0


@dataclass
class Tally:
    #: Member of `VICTIMS` → the number of kills.
    kills: Counter[str] = field(default_factory=Counter)
    aimed: int = 0
    unfinished: int = 0
    unfinished_aimed: int = 0
    unfinished_outputs: int = 0
    too_late: int = 0
    completed: int = 0
    #: Number of entries in the cache → how often a check found this number, to show that kills hit all phases.
    entries: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def __str__(self) -> str:
        victims = ", ".join(f"{self.kills[name]} {name}" for name in VICTIMS)
        return (
            f"{self.total} kills ({victims}; {self.aimed} aimed at a file that was being written);"
            f" {self.unfinished} between a first write and its rename ({self.unfinished_aimed} of them aimed,"
            f" {self.unfinished_outputs} of an output); {self.completed} correct builds afterwards;"
            f" {self.too_late} came too late; entries in the cache at each check: {dict(sorted(self.entries.items()))}"
        )


class KillTest:
    """A project below `folder`, with reference outputs for `variants` combinations of settings and weights."""

    def __init__(self, folder: Path, seed: int, variants: int = 6) -> None:
        self.random = random.Random(seed)
        self.tally = Tally()
        self.project, self.cache, self.base = folder / "project", folder / "cache", folder / "base"
        self._folder = folder
        self._variants = list(range(variants))
        self._current = 0
        self._seen: set[Path] = set()
        self.project.mkdir(parents=True)
        self._builder = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.builder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRTBUILD_CACHE_DIR": str(self.cache), "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=self.project,
            text=True,
        )
        self.references = [self._reference(variant) for variant in self._variants]
        self._known = {digest for files in self.references for digest in files.values()}
        self.duration_s = 1.0

    def close(self) -> None:
        if self._builder.stdin is not None and self._builder.stdout is not None:
            self._builder.stdin.close()
            self._builder.wait(timeout=60)
            self._builder.stdout.close()

    def round(self, kills: int) -> int:
        """Kill up to `kills` builds of another variant, then run one to its end. Returns the number of kills."""
        self._current = self.random.choice([variant for variant in self._variants if variant != self._current])
        self._write_variant(self._current)
        self._reset_cache()
        delivered = 0
        while delivered < kills:
            watched = self.random.choice([None, None, self.cache, self.project])  # None: not aimed
            if not self._kill_once(watched):
                break
            delivered += 1
            aimed = watched is not None
            self.tally.aimed += aimed
            unfinished = self._check_state()
            self.tally.unfinished += bool(unfinished)
            self.tally.unfinished_aimed += bool(unfinished) and aimed
            self.tally.unfinished_outputs += any(self.project in path.parents for path in unfinished)
        self._run_to_end()
        self._check_state()
        outputs = digests(self.project / "dist")
        assert outputs == self.references[self._current], (
            "the build after the kills left other outputs than the reference"
        )
        self.tally.completed += 1
        return delivered

    # -- a build

    def _start(self) -> int:
        assert self._builder.stdin is not None
        request = {"arguments": ["build", "--json", "-j", str(self.random.choice([1, 2]))]}
        paths = {"out": str(self._folder / "out"), "err": str(self._folder / "err")}
        self._builder.stdin.write(json.dumps({**request, **paths}) + "\n")
        self._builder.stdin.flush()
        started, pid = self._answer(60)
        assert started == "started"
        return int(pid)

    def _answer(self, timeout_s: float) -> Any:
        """The next line of the builder, or None after `timeout_s`.

        The lines for the start and the end of a build never arrive together. Otherwise `select` would not see the second
        line, which would be in the buffer of `stdout`.
        """
        assert self._builder.stdout is not None
        ready, _, _ = select.select([self._builder.stdout], [], [], timeout_s)
        return json.loads(self._builder.stdout.readline()) if ready else None

    def _ended(self, within_s: float) -> int | None:
        answer = self._answer(within_s)
        return None if answer is None else int(answer[2])

    def _run_to_end(self) -> None:
        began = time.monotonic()
        self._start()
        status = self._ended(LONGEST_BUILD_S)
        assert status is not None, "the build after the kills hangs"
        err = (self._folder / "err").read_text()
        assert status == 0, f"the build after the kills failed: {err[-4000:]}"
        out = (self._folder / "out").read_text()
        assert out, f"the build after the kills printed nothing: {err[-4000:]}"
        document = json.loads(out)
        assert document["ok"] and not document["errors"]
        self.duration_s = 0.9 * self.duration_s + 0.1 * (time.monotonic() - began)

    def _kill_once(self, watched: Path | None) -> bool:
        """Start a build and kill some of its processes at a random moment. Returns False if the build succeeded.

        With `watched`, the kill comes only after a new unfinished file is in this folder.
        """
        victim = self.random.choice(VICTIMS)
        moment_s = self.random.uniform(0.02, 1.0) * self.duration_s
        pid = self._start()
        status = self._ended(moment_s)
        while (
            watched is not None
            and status is None
            and not any(watched in path.parents for path in self._new_unfinished())
        ):
            status = self._ended(0.0005)
        workers: list[int] = []
        while status is None:
            workers = descendants(pid)
            if victim != "worker" or workers:
                break
            # there is no worker yet
            status = self._ended(self.random.uniform(0.0, 0.2) * self.duration_s)
        if status is not None:
            assert status == 0, (self._folder / "err").read_text()[-4000:]
            self.tally.too_late += 1
            return False
        if victim == "driver":
            kill([pid])
        elif victim == "all":
            kill([pid, *workers])
        else:
            kill([self.random.choice(workers)])
        status = self._ended(LONGEST_BUILD_S)
        assert status is not None, f"after a kill of {victim} the build hangs"
        if status == 0:  # the build ended at this moment, or it did not need the worker any more
            self.tally.too_late += 1
            return False
        if victim != "worker":
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9, "the kill was not delivered"
        wait_until_gone(workers)
        self.tally.kills[victim] += 1
        return True

    # -- the state after a kill

    def _check_state(self) -> list[Path]:
        """Fail unless cache and outputs are valid. Returns the new unfinished files."""
        unfinished = self._new_unfinished()
        self._seen.update(unfinished)
        report = verify(LocalStore(self.cache), quarantine=False)
        assert report.damage == (), f"the cache has wrong entries: {report.damage}"
        assert not any((self.cache / "quarantine").iterdir()), "a damaged entry was moved to the quarantine"
        self.tally.entries[len(list(self.cache.glob("ac/*/*")))] += 1
        for path, digest in digests(self.project / "dist").items():
            assert digest in self._known, f"{path} is not a file of a known build"
        return unfinished

    def _new_unfinished(self) -> list[Path]:
        """Files with bytes but without their final name, except those that an earlier check found."""
        unfinished = []
        for path in [*(self.cache / "tmp").glob("*"), *(self.project / "dist").rglob(".*.tmp")]:
            with contextlib.suppress(FileNotFoundError):
                if path not in self._seen and path.stat().st_size > 0:
                    unfinished.append(path)
        return unfinished

    # -- variants

    def _write_variant(self, variant: int) -> None:
        builder = f"    builder: {{optimization_level: {variant % 3}}}\n"
        outputs = "    outputs: {package: dist/net, plans: dist/plans}\n"
        copy_project("weights_file", self.project, *ADA_AND_AMPERE, ("    inputs:", f"{builder}{outputs}    inputs:"))
        weights = self._folder / f"weights{variant}.safetensors"
        if not weights.exists():
            write_weights(weights, WEIGHTS_FILE, seed=variant)
        shutil.copyfile(weights, self.project / "net.safetensors")

    def _reference(self, variant: int) -> dict[str, str]:
        self._write_variant(variant)
        if self.base.exists():
            self._reset_cache()
        self.duration_s = 1.0
        self._run_to_end()
        if not self.base.exists():
            self._make_base()
        return digests(self.project / "dist")

    def _make_base(self) -> None:
        """Copy the cache without records that depend on weights or builder settings, such as engines and packages."""
        shutil.copytree(self.cache, self.base)
        store, used = LocalStore(self.cache), set()
        for entry in self.base.glob("ac/*/*"):
            action = store.get_action(entry.name)
            record = store.get_record(entry.name) if action is not None and action.document is not None else None
            if action is None or record is None or record.recipe.stage in ("engine", "package", "weights"):
                entry.unlink()
            else:
                used |= {part.sha256 for part in (action.document, *(part for _, part in action.files)) if part}
        for blob in self.base.glob("cas/*/*"):
            if blob.name not in used:
                blob.unlink()

    def _reset_cache(self) -> None:
        shutil.rmtree(self.cache)
        shutil.copytree(self.base, self.cache)
        self._seen = set((self.project / "dist").rglob(".*.tmp"))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every finished file, by its path below `folder`."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".tmp")
    }


def run(folder: Path, kills: int, seed: int, *, variants: int = 6, report_every: int = 25) -> Tally:
    """Kill at least `kills` builds, until each of `VICTIMS` was killed and at least one kill was unfinished.

    The run ends after about `5 * kills` kills in any case. After every `report_every` kills, it prints the tally to stderr.
    """
    test = KillTest(folder, seed, variants)
    try:
        reported = 0
        for _ in range(10 * kills):
            all_kinds = test.tally.unfinished > 0 and set(test.tally.kills) == set(VICTIMS)
            if test.tally.total >= (kills if all_kinds else 5 * kills):
                break
            test.round(test.random.randint(2, 6))
            if test.tally.total // report_every > reported:
                reported = test.tally.total // report_every
                print(test.tally, file=sys.stderr, flush=True)
        return test.tally
    finally:
        test.close()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="trtbuild-kills-", dir=os.environ.get("TRTBUILD_KILLS_DIR")) as scratch:
        print(run(Path(scratch), int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
