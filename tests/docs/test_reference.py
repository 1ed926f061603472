"""The generated pages of the reference match the code."""

from __future__ import annotations

import pytest

import trtbuild
from docs import reference
from trtbuild import errors
from trtbuild.cli.main import cli


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (reference.DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name](), "run `make docs`"


def test_every_command_and_flag_is_on_the_page() -> None:
    text = reference.command_line()
    inner = [f"cache {name}" for name in cli.commands["cache"].commands]  # type: ignore[attr-defined]
    for name in (*cli.commands, *inner):
        assert f"### `trtbuild {name}`\n" in text
    for command in (cli, *cli.commands.values()):
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
