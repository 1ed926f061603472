"""`tests.imports`: modules of one project do not hide those of another project."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.imports import import_from


def test_two_projects_may_have_a_package_with_the_same_name(tmp_path: Path) -> None:
    for project in ("one", "two"):
        (tmp_path / project / "package_of_a_project").mkdir(parents=True)
        (tmp_path / project / "package_of_a_project" / "__init__.py").touch()
        (tmp_path / project / "package_of_a_project" / f"{project}.py").write_text(f"NAME = {project!r}\n")
    path = list(sys.path)
    for project in ("one", "two"):
        module = import_from(tmp_path / project, f"package_of_a_project.{project}")
        assert project == module.NAME
    assert not [name for name in sys.modules if name.startswith("package_of_a_project")]
    assert sys.path == path
