"""Mistakes that are found before any step runs: messages, exit status and error types match the catalogue."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.messages.catalogue import Case, check_or_write, normalized, read, shown
from trtbuild.cli.main import run

FILES = (
    "yaml",
    "names",
    "shapes",
    "values",
    "files",
    "outputs",
    "targets",
    "locks",
    "configuration",
    "command_line",
    "verification",
)
CASES = [pytest.param(file, case, id=f"{file}: {case.name}") for file in FILES for case in read(file)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def write(project: Path, case: Case) -> None:
    for name, content in case.files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(("file", "case"), CASES)
def test_messages_match_the_catalogue(
    file: str, case: Case, project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, case)
    program, *arguments = shlex.split(case.heading)
    while "=" in program:  # an environment variable in front of the command
        monkeypatch.setenv(*program.split("=", 1))
        program, *arguments = arguments
    assert program == "trtbuild"
    code = run(arguments)
    out, err = capfd.readouterr()
    assert out == ""
    assert run(["--json", *arguments]) == code
    out, err_with_json = capfd.readouterr()
    assert err_with_json == err, "--json changes the message on standard error"
    document = json.loads(out)
    # only `trtbuild plan` may list steps together with an error
    assert (not document["ok"] and document["steps"] == []) or case.heading.startswith("trtbuild plan")
    assert "".join(f"error: {shown(error)}\n" for error in document["errors"]) == err
    kinds = list(dict.fromkeys(error["type"] for error in document["errors"]))
    check_or_write(file, case, normalized(f"exit {code} {' '.join(kinds)}\n{err}", project).rstrip("\n"))
    assert code == 2
    assert not (project / "dist").exists()
