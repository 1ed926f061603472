"""A project with a model that imports a library, and a watcher that keeps the library imported.

The library is an installed distribution, whose import has many side effects.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.driver.watching.watched import Watch

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

#: Each trace writes a file to the directory ``seen``. Tests replace ``IMPORT`` by imports, one of which is ``import sys``.
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
        self.site = folder / "site-packages"
        self.install("library", {"library.py": library})
        self.environment["PYTHONPATH"] = str(self.site)
        (self.project / "trtbuild.yaml").write_text(MANIFEST)
        self.write("a", "import sys\nimport library\n")
        self.write("b", "import sys\n")

    def install(self, name: str, files: dict[str, str]) -> None:
        """Install a distribution. `files` maps names below ``site-packages`` to texts."""
        files = {**files, f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
        record = "".join(f"{file},,\n" for file in (*files, f"{name}-1.0.dist-info/RECORD"))
        for file, text in {**files, f"{name}-1.0.dist-info/RECORD": record}.items():
            path = self.site / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write(self, name: str, imports: str, more: str = "") -> None:
        """Write the code of the model `name`, with `imports` in the place of ``IMPORT``, and `more` at the end."""
        (self.project / f"{name}.py").write_text(MODEL.replace("NAME", name).replace("IMPORT", imports) + more)

    def start(self, *models: str) -> None:
        """Start the watcher, and wait for its first build.

        By default, the watcher builds only `b`. So it does not trace `a` after each change of `a`.
        """
        super().start(*(models or ("b",)))
        self.wait_for(lambda: self.log.exists() and self.builds())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the watcher during the block."""
        self.start()
        try:
            yield
        finally:
            status = self.end()
        assert status == 0

    def trace(self, name: str, *arguments: str, **variables: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Trace a model again. Return the values that its code has written, and the JSON document of the build.

        `variables` are additional environment variables. With the variable ``ALONE``, the build does not use the watcher,
        because the watcher's environment lacks this variable.
        """
        for file in self.seen.iterdir():
            file.unlink()
        process = self.build(name, "--force", "--until", "trace", "--json", *arguments, **variables)
        assert process.returncode == 0, process.stdout + process.stderr
        assert ("building without" in process.stderr) == ("ALONE" in variables)
        (file,) = self.seen.iterdir()
        return json.loads(file.read_text()), json.loads(process.stdout)


def is_preloaded(seen: dict[str, Any]) -> bool:
    """Whether another process than that of the trace has imported the library."""
    return seen["imported by"] is not None and seen["imported by"] != seen["pid"]


def results(document: dict[str, Any]) -> dict[str, Any]:
    """Step id → the key and the outputs of the step."""
    return {step["id"]: (step["key"], step.get("outputs")) for step in document["steps"]}
