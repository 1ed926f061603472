"""docs/lock.md names every field of the file and of the document, and its commands are ones."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tests.core.planning.test_locks import a_lock
from trtbuild.cli.main import cli
from trtbuild.core.planning import lockfile
from trtbuild.core.planning.locks import LOCKED_OUTPUTS, LockedModel

PAGE = (Path(__file__).parents[2] / "docs" / "lock.md").read_text()


def test_every_field_of_the_file_is_documented() -> None:
    written = re.findall(r'^ "(\w+)":', lockfile.to_text(a_lock()), re.MULTILINE)
    assert written == ["schema", "platform", "step_versions", "manifests", "models"]
    inner = [field.name for field in dataclasses.fields(LockedModel)]
    outputs = [name for names in LOCKED_OUTPUTS.values() for name in names]
    for name in (*written, *inner, *outputs, "key", "sha256", "size"):
        assert f"`{name}`" in PAGE, name
    assert lockfile.SCHEMA in PAGE


def test_every_flag_and_command_stands_there_and_is_one() -> None:
    for command, flags in re.findall(r"trtbuild (\w+)((?: --?[\w-]+)*)", PAGE):
        assert command in cli.commands, command
        known = {name for option in cli.commands[command].params for name in option.opts}
        assert set(flags.split()) <= known, (command, flags)
    own = [name for option in cli.commands["lock"].params for name in option.opts if name == "--check"]
    assert own and "`trtbuild lock --check`" in PAGE and "--upgrade" in PAGE
