"""A trace with libraries that the watcher keeps imported equals a trace that imports them itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.watching.libraries import LIBRARY, Libraries, is_preloaded, results
from trtbuild.driver.workers.forking.owner import CAN_FORK_WORKERS

pytestmark = pytest.mark.skipif(not CAN_FORK_WORKERS, reason="this system cannot fork workers")


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Libraries]:
    started = Libraries(tmp_path_factory.mktemp("libraries"))
    started.start()
    yield started
    assert started.end() == 0


def test_a_library_is_imported_once_and_another_model_does_not_see_it(watch: Libraries) -> None:
    first, _ = watch.trace("a")
    second, _ = watch.trace("a")
    other, _ = watch.trace("b")
    assert is_preloaded(first)
    assert first["imported by"] == second["imported by"]
    assert first["pid"] != second["pid"]
    assert (other["patched"], other["imported by"], other["set"]) == (False, None, False)


def test_the_trace_has_the_same_key_and_sees_the_same_as_without_the_watcher(watch: Libraries) -> None:
    forked, document = watch.trace("a")
    alone, document_alone = watch.trace("a", ALONE="1")
    assert is_preloaded(forked)
    assert not is_preloaded(alone)
    assert results(document) == results(document_alone)  # the key has all dependencies, in the order of discovery
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
    assert not is_preloaded(seen)
    watch.write("a", "import sys\nimport library\n", "\n# a comment\n")
    seen, _ = watch.trace("a")
    assert is_preloaded(seen)


def test_a_build_with_another_variable_gets_another_process_that_has_imported_the_library(watch: Libraries) -> None:
    name = "TRTBUILD_MODE"  # the watcher accepts clients with any value of this variable
    watch.write("a", "import sys\nimport library\n", f"\nassert '{name}' not in os.environ\n")
    first, _ = watch.trace("a")
    watch.write("a", "import sys\nimport library\n", f"\nassert os.environ['{name}'] == 'x'\n")
    second, _ = watch.trace("a", **{name: "x"})
    assert is_preloaded(first)
    assert is_preloaded(second)
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
    assert is_preloaded(seen)


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


def test_a_file_that_the_library_looked_for_beside_one_that_it_read_is_a_dependency(watch: Libraries) -> None:
    folder = watch.project.parent / "models"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    path = watch.site / "library.py"
    path.write_text(
        f"{LIBRARY}\nMODE = os.path.exists({str(folder / 'best.bin')!r})\nopen({str(folder / 'config.json')!r}).close()\n"
    )
    watch.write("a", "import sys\nimport library\n")
    try:
        before, document = watch.trace("a")
        assert is_preloaded(before)
        assert results(document) == results(watch.trace("a", ALONE="1")[1])
        (folder / "best.bin").write_bytes(b"weights")
        after, _ = watch.trace("a")
    finally:
        path.write_text(LIBRARY)
    assert (before["mode"], after["mode"]) == (False, True)


def test_an_import_that_fails_is_an_error_of_the_model(watch: Libraries) -> None:
    watch.write("a", "import sys\nfrom library import no_such_name\n")
    process = watch.build("a", "--until", "trace")
    assert process.returncode == 1
    assert "cannot import name 'no_such_name'" in process.stdout + process.stderr
    watch.write("a", "import sys\nimport library\n")
    assert is_preloaded(watch.trace("a")[0])


def test_a_killed_process_is_replaced(watch: Libraries) -> None:
    watch.write("a", "import sys\nimport library\n")
    before, _ = watch.trace("a")
    os.kill(before["imported by"], signal.SIGKILL)
    after, _ = watch.trace("a")
    assert after["imported by"] != before["imported by"]
    assert after["drawn"] == before["drawn"]
