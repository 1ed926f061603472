"""If a trace needs other imports than its process has done in advance, it starts again in another process.

In these tests, trtbuild predicts the imports from the project's ``helpers/tools.py``. But Python imports an installed
``helpers.tools``, because the project's folder has no ``__init__.py``. So the predicted import of ``library`` is wrong.

With the environment variable ``ALONE``, a build does not use the watcher, so its process has imported nothing in
advance. Such a build has the right results. `seen` has what the model's code has noticed, such as side effects of the
library's import.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.driver.watching.libraries import Libraries, results
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")

#: The program depends on whether the library is imported. The trace announces a large program before it ends, so that
#: the next steps can start.
LARGE_MODEL = """\
import sys
import torch
import helpers.tools

#: More than 64 MiB of weights: such a program is large.
LARGE, SMALL = 4200, 4


class Net(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(4, size)
        self.more = torch.nn.Linear(size, size)

    def forward(self, x):
        y = self.more(self.linear(x))
        return torch.tanh(y) if "library" in sys.modules else torch.relu(y)


def build():
    torch.manual_seed(0)
    return Net(LARGE if "library" in sys.modules else SIZE_ALONE).eval()
"""


class Helpers(Libraries):
    """A project with ``helpers/tools.py``, and an installed package that Python imports instead.

    Each process that executes the installed file adds a line to the file `executed`."""

    def __init__(self, folder: Path, in_project: str, installed: str) -> None:
        super().__init__(folder)
        self.executed = folder / "executed"
        tools = self.project / "helpers" / "tools.py"
        tools.parent.mkdir()
        tools.write_text(in_project)
        note = (
            "import os, sys\n"
            f"with open({str(self.executed)!r}, 'a') as file:\n"
            "    file.write(f\"{os.getpid()} {'library' in sys.modules}\\n\")\n"
        )
        self.install("helpers", {"helpers/__init__.py": "", "helpers/tools.py": note + installed})

    def processes(self) -> list[tuple[int, bool]]:
        """Return (pid, whether the library was imported) of each process that has executed the installed file.

        Processes that an earlier call has returned are left out."""
        lines = [line.split() for line in self.executed.read_text().splitlines()]
        self.executed.unlink()
        return [(int(pid), has_library == "True") for pid, has_library in lines]


def test_a_trace_in_a_process_with_a_wrong_import_starts_again_without_the_library(tmp_path: Path) -> None:
    watch = Helpers(tmp_path, "import library\n", "")
    watch.write("a", "import sys\nimport helpers.tools\nimport json\n")
    with watch.running():
        seen, document = watch.trace("a")
        (_, first_had_library), (second, second_had_library) = watch.processes()
        assert (first_had_library, second_had_library) == (True, False)
        assert (seen["pid"], seen["imported by"], seen["patched"]) == (second, None, False)
        alone, document_alone = watch.trace("a", ALONE="1")
        assert watch.processes() == [(alone["pid"], False)]
        assert results(document) == results(document_alone)
        assert (seen["random"], seen["set"]) == (alone["random"], alone["set"])


@pytest.mark.parametrize("size_alone", ["LARGE", "SMALL"])
def test_an_unfit_trace_that_has_finished_its_program_announces_nothing(tmp_path: Path, size_alone: str) -> None:
    """The code does not import the library. trtbuild does not know this before the code has ended."""
    watch = Helpers(tmp_path, "import library\n", "")
    (watch.project / "a.py").write_text(LARGE_MODEL.replace("SIZE_ALONE", size_alone))
    with watch.running():
        document, stages = _build(watch, "cache", tmp_path / "events")
        assert [had_library for _, had_library in watch.processes()] == [True, False]
        assert stages == ["trace", "lower", "partition"]  # an announcement by the first process would start more steps
        alone, _ = _build(watch, "cache of alone", tmp_path / "events of alone", ALONE="1")
        assert [had_library for _, had_library in watch.processes()] == [False]
        assert results(document) == results(alone)


def _build(watch: Libraries, cache: str, events: Path, **variables: str) -> tuple[dict[str, Any], list[str]]:
    """Build `a` with a new cache, until the partition step. Return the document, and the stages of all started steps."""
    variables["TRTBUILD_CACHE_DIR"] = str(watch.project.parent / cache)
    process = watch.build("a", "-j", "2", "--until", "partition", "--json", "--events", str(events), **variables)
    assert process.returncode == 0, process.stdout + process.stderr
    assert ("building without" in process.stderr) == ("ALONE" in variables)
    lines = map(json.loads, events.read_text().splitlines())
    return json.loads(process.stdout), [line["id"].split("/")[1] for line in lines if line["event"] == "step_started"]
