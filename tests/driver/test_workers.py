"""An error of a worker is the same error in the parent."""

from __future__ import annotations

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
    found = rebuild({"type": "KeyError", "text": "KeyError: 3", "trace": "Traceback: line 1"}, "")
    assert isinstance(found, errors.InternalError)
    assert "Traceback: line 1" in found.text
