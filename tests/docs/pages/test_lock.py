"""docs/lock.md names every field of the lock file, and the commands and flags on the page exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tests.core.planning.test_locks import a_lock
from trtbuild.cli.main import cli
from trtbuild.core.planning import lockfile
from trtbuild.core.planning.locks import LOCKED_OUTPUTS, LockedModel

PAGE = (Path(__file__).parents[3] / "docs" / "lock.md").read_text()


def test_every_field_of_the_file_is_documented() -> None:
    fields_of_file = re.findall(r'^ "(\w+)":', lockfile.to_text(a_lock()), re.MULTILINE)
    assert fields_of_file == ["schema", "platform", "step_versions", "manifests", "models"]
    fields_of_model = [field.name for field in dataclasses.fields(LockedModel)]
    outputs = [name for names in LOCKED_OUTPUTS.values() for name in names]
    for name in (*fields_of_file, *fields_of_model, *outputs, "key", "sha256", "size"):
        assert f"`{name}`" in PAGE, name
    assert lockfile.SCHEMA in PAGE


def test_every_command_and_flag_of_the_page_exists() -> None:
    for command, flags in re.findall(r"trtbuild (\w+)((?: --?[\w-]+)*)", PAGE):
        assert command in cli.commands, command
        flags_of_command = {name for option in cli.commands[command].params for name in option.opts}
        assert set(flags.split()) <= flags_of_command, (command, flags)
    assert "`trtbuild lock --check`" in PAGE and "--upgrade" in PAGE
