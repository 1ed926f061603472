"""The generated pages of the reference match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trtbuild
from docs import files, reference
from trtbuild import errors
from trtbuild.cli.main import cli

FILES_PAGE = (files.ROOT / "docs" / "files.md").read_text("utf-8")
LISTED = re.findall(r"^\* `([^`]+)`: ", FILES_PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (reference.DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name](), "run `make docs`"


def test_every_command_and_flag_is_on_the_page() -> None:
    text = reference.command_line()
    cache_commands = cli.commands["cache"].commands  # type: ignore[attr-defined]
    for name in (*cli.commands, *(f"cache {name}" for name in cache_commands)):
        assert f"### `trtbuild {name}`\n" in text
    for command in (cli, *cli.commands.values(), *cache_commands.values()):
        for option in command.params:
            if option.param_type_name == "option" and not getattr(option, "hidden", False):
                assert option.opts[-1] in text, (command.name, option.opts)


def test_every_public_name_and_error_is_on_the_page() -> None:
    text = reference.python_api()
    for name in trtbuild._MODULE_OF_NAME:
        assert f"## `trtbuild.{name}`\n" in text
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.TrtbuildError):
            assert f"`{name}` | {kind.exit_code} |" in text


# -- docs/files.md ---------------------------------------------------------------------------------------------------


def test_every_module_is_listed_once() -> None:
    modules = [path for path in files.PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert len(modules) > 500
    assert {path.relative_to(files.PACKAGE).as_posix() for path in modules} <= set(LISTED)
    assert len(LISTED) == len(set(LISTED))


def test_every_line_has_a_sentence() -> None:
    lines = re.findall(r"^\* `[^`]+`: (.*)$", FILES_PAGE, re.MULTILINE)
    assert len(lines) == len(LISTED)
    assert [line for line in lines if not re.match(r"\W*\w.{8,}", line)] == []


def test_a_test_file_is_listed_only_if_no_module_has_its_name() -> None:
    assert "tests/store/transports/scripted_server.py" in LISTED
    assert "tests/builds/test_incremental.py" in LISTED
    assert "tests/store/transports/test_patience.py" not in LISTED
    assert (files.ROOT / "tests/store/transports/test_patience.py").exists()


@pytest.mark.parametrize(
    ("name", "text", "subject"),
    [
        (
            "a.py",
            '"""Reads ``a`` of torch 2.13, and\nwrites b. Another sentence."""\n',
            "Reads `a` of torch 2.13, and writes b.",
        ),
        ("a.js", "// The view\n// of steps. It has rows.\n\nlet a;\n", "The view of steps."),
    ],
)
def test_the_subject_is_the_first_sentence(tmp_path: Path, name: str, text: str, subject: str) -> None:
    (tmp_path / name).write_text(text)
    assert files._subject(tmp_path / name) == subject


def test_a_file_without_a_docstring_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    with pytest.raises(AssertionError, match="no docstring"):
        files._subject(tmp_path / "a.py")


def test_names_are_public_functions_and_classes_and_all_constants(tmp_path: Path) -> None:
    text = (
        "_LIMIT = 1\nSIZE: int = 2\nT = 3\nlower = 4\nclass A: ...\ndef f(): ...\nasync def g(): ...\ndef _h(): ...\n"
    )
    (tmp_path / "a.py").write_text(text)
    # a name of one letter, such as T, is not listed
    assert list(files._names(tmp_path / "a.py")) == ["_LIMIT", "SIZE", "A", "f", "g"]
