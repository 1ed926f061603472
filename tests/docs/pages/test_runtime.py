"""The tables and lists of docs/runtime.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.core.packages.test_package_reading import document
from trtbuild import errors
from trtbuild.runtime.calls.loaded import Loaded

PAGE = (Path(__file__).parents[3] / "docs" / "runtime.md").read_text()

#: The title of the section about loading a package.
LOADING = (
    "## `trtbuild.load(path, *, device=None, target=None, verify=True, follow_links=False, import_operators=False, "
    + "load_plugins=False)`"
)


def section(title: str) -> str:
    """Return the text between a title and the next title of the second level."""
    return PAGE.partition(f"\n{title}\n")[2].partition("\n## ")[0]


def test_every_error_is_listed() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", section("## Errors"), re.MULTILINE)
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.PackageError)
    }
    assert set(listed) == kinds - {"PackageError"}


def test_attributes_of_a_loaded_package_are_listed() -> None:
    listed = re.findall(r"`(\w+)(?:\([^)]*\))?`", "".join(re.findall(r"^\| (`.*?) \|", section(LOADING), re.MULTILINE)))
    of_class = {name for name in vars(Loaded) if not name.startswith("_")} - {"runner"}
    set_in_init = {"inputs", "outputs", "dims", "profiles", "targets", "target", "device"}
    arguments = {"path", "verify", "follow_links", "import_operators", "load_plugins"}  # of `load`
    assert of_class | set_in_init == set(listed) - arguments


def test_fields_and_files_of_the_index_are_listed() -> None:
    text = section("## Contents of a package")
    index = document()
    for field in [*index, *index["targets"]["ada"]]:
        assert field == "schema" or f"`{field}`" in text, field
    for path in index["files"]:
        kind = re.sub(r"\w+/encoder\.0", "<target>/<partition>", re.sub(r"[0-9a-f]{32}", "<digest>", path))
        assert f"`{kind}`" in text
