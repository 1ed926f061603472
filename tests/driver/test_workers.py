"""An error of a worker is the same error in the parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtbuild import errors
from trtbuild.driver.worker import describe
from trtbuild.driver.workers import rebuild

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TrtbuildError) and kind is not errors.ManifestErrors
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_travels_whole(kind: type[errors.TrtbuildError]) -> None:
    error = kind("what happened", hint="what to do")
    error.file, error.line = "net.py", 3
    found = rebuild(describe(error), "one\ntwo")
    assert type(found) is kind
    assert (found.text, found.hint, found.file, found.line) == ("what happened", "what to do", "net.py", 3)


def test_what_only_some_kinds_have_travels_too() -> None:
    source = rebuild(describe(errors.SourceError("no", code="weights")), "")
    assert isinstance(source, errors.SourceError)
    assert source.code == "weights"
    compiler = rebuild(describe(errors.ToolchainError("no")), "one\ntwo")
    assert isinstance(compiler, errors.ToolchainError)
    assert compiler.log == ("one", "two")


def test_an_error_of_no_known_kind_is_a_bug_with_its_traceback() -> None:
    for kind in ("KeyError", "InternalError"):
        found = rebuild({"type": kind, "text": "KeyError: 3", "trace": "Traceback: line 1"}, "")
        assert isinstance(found, errors.InternalError)
        assert "Traceback: line 1" in found.text
        assert "report" in (found.hint or "")


def test_a_worker_whose_parent_died_before_it_began_does_no_job(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"kind": "engine"}\n')
    os.close(writing)  # as the kernel does for a parent that is killed
    command = [sys.executable, "-m", "trtbuild.driver.worker", "engine", str(tmp_path / "store"), str(tmp_path)]
    done = subprocess.run(command, stdin=reading, capture_output=True, text=True, timeout=60, check=False)
    os.close(reading)
    assert (done.returncode, done.stdout) == (1, "")
