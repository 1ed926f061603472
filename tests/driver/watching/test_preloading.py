"""Libraries that the watcher keeps imported: a trace with them is equal to one without them. All are real processes.

The library of these tests is an installed distribution that does what libraries do while they are imported: it patches
torch, reads and sets variables, looks for a module that does not exist, prints, and draws a random number.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver.watching.watched import Watch
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")

MANIFEST = """\
version: 1
targets: {ada: {sm: 89}}
profiles: {rows: {x: {min: [1, 4], opt: [2, 4], max: [8, 4]}}}
models:
  a: {source: {python: "a:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
  b: {source: {python: "b:build"}, inputs: {x: {}}, profiles: [rows], targets: [ada]}
"""

LIBRARY = """\
import os, random, sys
import torch
MODE = os.environ.get("LIBRARY_MODE")
os.environ.setdefault("SET_BY_LIBRARY", "1")
DRAWN = random.random()
torch.nn.functional.patched_by_library = True
try:
    import a_module_that_does_not_exist
except ImportError:
    pass
print("the library is imported")
PID = os.getpid()
"""

#: Each trace writes a file to the directory `seen`.
MODEL = """\
import json
import os
import random
import torch
IMPORT

def build():
    library = sys.modules.get("library")
    seen = {
        "model": "NAME", "pid": os.getpid(), "patched": hasattr(torch.nn.functional, "patched_by_library"),
        "imported by": library and library.PID, "mode": library and library.MODE, "drawn": library and library.DRAWN,
        "random": random.random(), "set": "SET_BY_LIBRARY" in os.environ,
    }
    with open(f"{os.environ['PWD_OF_TEST']}/seen/{os.getpid()}", "w") as file:
        file.write(json.dumps(seen))
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval()
"""


class Libraries(Watch):
    """A project with a model `a` that imports the library, and a model `b` that does not."""

    def __init__(self, folder: Path, library: str = LIBRARY) -> None:
        super().__init__(folder)
        self.seen.mkdir()
        site = folder / "site-packages"
        metadata = site / "library-1.0.dist-info"
        metadata.mkdir(parents=True)
        (site / "library.py").write_text(library)
        (metadata / "RECORD").write_text("library.py,,\nlibrary-1.0.dist-info/RECORD,,\n")
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 1.0\n")
        self.environment["PYTHONPATH"] = str(site)
        (self.project / "trtbuild.yaml").write_text(MANIFEST)
        self.write("a", "import sys\nimport library\n")
        self.write("b", "import sys\n")

    def write(self, name: str, imports: str, more: str = "") -> None:
        (self.project / f"{name}.py").write_text(MODEL.replace("NAME", name).replace("IMPORT", imports) + more)

    def start(self, *models: str) -> None:
        """Watch `b` only, so that the watcher itself does not trace `a` after each change."""
        super().start(*models or "b")
        self.wait_for(lambda: self.log.exists() and self.builds())

    def trace(self, name: str, *arguments: str, **variables: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Trace a model again. Returns what its code has seen, and the JSON document of the build."""
        for file in self.seen.iterdir():
            file.unlink()
        done = self.build(name, "--force", "--until", "trace", "--json", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("building without" in done.stderr) == ("ALONE" in variables)
        (file,) = self.seen.iterdir()
        return json.loads(file.read_text()), json.loads(done.stdout)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Libraries]:
    started = Libraries(tmp_path_factory.mktemp("libraries"))
    started.start()
    yield started
    assert started.end() == 0


def _is_preloaded(seen: dict[str, Any]) -> bool:
    return seen["imported by"] is not None and seen["imported by"] != seen["pid"]


def _results(document: dict[str, Any]) -> dict[str, Any]:
    return {step["id"]: (step["key"], step.get("outputs")) for step in document["steps"]}


def test_a_library_is_imported_once_and_no_other_model_meets_it(watch: Libraries) -> None:
    first, _ = watch.trace("a")
    second, _ = watch.trace("a")
    other, _ = watch.trace("b")
    assert _is_preloaded(first)
    assert first["imported by"] == second["imported by"]
    assert first["pid"] != second["pid"]
    assert (other["patched"], other["imported by"], other["set"]) == (False, None, False)


def test_the_trace_has_the_same_key_and_sees_the_same_as_without_the_watcher(watch: Libraries) -> None:
    forked, document = watch.trace("a")
    alone, document_alone = watch.trace("a", ALONE="1")
    assert _is_preloaded(forked)
    assert not _is_preloaded(alone)
    assert _results(document) == _results(document_alone)  # the key has all dependencies, in their order
    assert watch.build("a", "--frozen", "--until", "trace").returncode == 0  # so the trace was stored
    for name in ("patched", "mode", "drawn", "random", "set"):
        assert forked[name] == alone[name], name
    log = (watch.project / ".trtbuild" / "logs" / "a" / "trace.log").read_text()
    watch.trace("a")
    assert (watch.project / ".trtbuild" / "logs" / "a" / "trace.log").read_text() == log
    assert "the library is imported" in log


def test_code_before_the_import_runs_before_the_import(watch: Libraries) -> None:
    watch.write("a", 'os.environ["LIBRARY_MODE"] = "set by the model"\nimport sys\nimport library\n')
    seen, _ = watch.trace("a")
    assert seen["mode"] == "set by the model"
    assert not _is_preloaded(seen)
    watch.write("a", "import sys\nimport library\n", "\n# a comment\n")
    seen, _ = watch.trace("a")
    assert _is_preloaded(seen)


def test_variables_that_the_library_reads_are_those_of_the_build(watch: Libraries) -> None:
    name = "TRTBUILD_MODE"  # a variable that may differ between the watcher and its client
    watch.write("a", "import sys\nimport library\n", f"\nassert os.environ.get('{name}') in (None, 'x')\n")
    first, _ = watch.trace("a")
    second, _ = watch.trace("a", **{name: "x"})
    assert _is_preloaded(first)
    assert _is_preloaded(second)
    assert first["imported by"] != second["imported by"]


def test_a_file_of_the_project_that_replaces_the_library_is_used(watch: Libraries) -> None:
    watch.write("a", "import sys\nimport library\n")
    assert watch.trace("a")[0]["patched"]
    own = watch.project / "library.py"
    own.write_text("MODE, DRAWN, PID = 'own', 0, -1\n")
    try:
        seen, _ = watch.trace("a")
        assert (seen["mode"], seen["patched"]) == ("own", False)
    finally:
        own.unlink()
    seen, _ = watch.trace("a")
    assert seen["patched"]
    assert _is_preloaded(seen)


def test_an_edited_library_is_imported_again(watch: Libraries) -> None:
    watch.write("a", "import sys\nimport library\n")
    before, _ = watch.trace("a")
    path = Path(watch.environment["PYTHONPATH"]) / "library.py"
    path.write_text(LIBRARY + "MODE = 'edited'\n")
    try:
        after, _ = watch.trace("a")
    finally:
        path.write_text(LIBRARY)
    assert (before["mode"], after["mode"]) == (None, "edited")


def test_an_import_that_fails_is_an_error_of_the_model(watch: Libraries) -> None:
    watch.write("a", "import sys\nfrom library import no_such_name\n")
    done = watch.build("a", "--until", "trace")
    assert done.returncode == 1
    assert "cannot import name 'no_such_name'" in done.stdout + done.stderr
    watch.write("a", "import sys\nimport library\n")
    assert _is_preloaded(watch.trace("a")[0])


def test_a_killed_process_is_replaced(watch: Libraries) -> None:
    watch.write("a", "import sys\nimport library\n")
    before, _ = watch.trace("a")
    os.kill(before["imported by"], signal.SIGKILL)
    after, _ = watch.trace("a")
    assert after["imported by"] != before["imported by"]
    assert after["drawn"] == before["drawn"]


def test_a_library_that_starts_a_thread_is_imported_by_each_trace(tmp_path: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    watch = Libraries(tmp_path, LIBRARY + thread)
    watch.start()
    seen, _ = watch.trace("a")
    assert seen["imported by"] == seen["pid"]
    assert watch.end() == 0
