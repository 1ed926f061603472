"""When a watcher ends, which clients and directories it accepts, and which changes start a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild import null_build
from trtbuild.driver.watching.conditions import LEAST_FREE_BYTES, Conditions
from trtbuild.driver.watching.endpoint import is_private
from trtbuild.driver.watching.notifier import is_relevant
from trtbuild.driver.workers.environments import differing_variable


def test_a_watcher_goes_on_if_nothing_has_changed(tmp_path: Path) -> None:
    assert Conditions(tmp_path).why_to_end() is None


def test_a_moved_or_replaced_project_ends_the_watcher(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    conditions = Conditions(project)
    project.rename(tmp_path / "moved")
    assert conditions.why_to_end() == "the project's directory changed"
    project.mkdir()
    assert conditions.why_to_end() == "the project's directory changed"


def test_an_installed_distribution_ends_the_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(null_build, "interpreter", lambda: ["3", "/usr", str(packages)])
    conditions = Conditions(tmp_path)
    (packages / "new-1.0.dist-info").mkdir()
    assert conditions.why_to_end() == "the installed distributions changed"


def test_edits_in_a_directory_of_the_search_path_do_not_end_the_watcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages, project = tmp_path / "site-packages", tmp_path / "project"
    (packages / "yaml").mkdir(parents=True)
    (packages / "__pycache__").mkdir()
    project.mkdir()
    monkeypatch.setattr(null_build, "interpreter", lambda: ["3", "/usr", str(project), str(packages)])
    conditions = Conditions(project)
    (project / "dist").mkdir()
    (project / "__pycache__").mkdir()
    (project / ".net.py.new").write_text("")
    (project / ".net.py.new").rename(project / "net.py")  # as many editors save a file
    assert conditions.why_to_end() is None
    (project / "yaml.py").write_text("")  # hides a library that a process of the watcher has loaded
    assert conditions.why_to_end() == "the installed distributions changed"


def test_an_edit_of_trtbuild_ends_the_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "null_build.py").write_text("")
    monkeypatch.setattr(null_build, "__file__", str(tmp_path / "null_build.py"))
    conditions = Conditions(Path("/"))
    (tmp_path / "null_build.py").write_text("another")
    assert conditions.why_to_end() == "trtbuild itself changed"


def test_little_free_memory_ends_the_watcher(tmp_path: Path) -> None:
    free = [LEAST_FREE_BYTES]
    conditions = Conditions(tmp_path, lambda: free[0])
    assert conditions.why_to_end() is None
    free[0] -= 1
    assert conditions.why_to_end() == "only 511 MiB of memory are free"


def test_free_variables_and_variables_of_trtbuild_may_differ() -> None:
    watcher = {"PATH": "/bin", "PWD": "/a", "TRTBUILD_DOMAIN": "a"}
    assert (
        differing_variable(watcher, {"PATH": "/bin", "PWD": "/b", "OLDPWD": "/a", "TRTBUILD_SIGNING_KEY": "k"}) is None
    )
    assert differing_variable(watcher, {"PATH": "/usr/bin"}) == "PATH"
    assert differing_variable(watcher, {**watcher, "OMP_NUM_THREADS": "1"}) == "OMP_NUM_THREADS"
    assert differing_variable({**watcher, "HF_HOME": "/x"}, watcher) == "HF_HOME"


def test_only_a_directory_that_nobody_else_can_use_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    assert is_private(str(folder))
    folder.chmod(0o750)
    assert not is_private(str(folder))
    (tmp_path / "link").symlink_to(tmp_path)
    assert not is_private(str(tmp_path / "link"))
    assert not is_private(str(tmp_path / "missing"))


def test_changes_of_outputs_and_of_bytecode_start_no_build() -> None:
    ignored = ["/p/dist/net", "/p/cache"]
    assert not is_relevant(
        ["/p/dist/net/index.json", "/p/cache", "/p/models/__pycache__/a.pyc", "/p/.git/index"], ignored
    )
    assert is_relevant(["/p/dist/net/a", "/p/models/a.py"], ignored)
    assert is_relevant(["/p/dist/network"], ignored)
    assert not is_relevant(["/p/.report.html.0123456789abcdef.tmp"], ignored), "a temporary file of trtbuild"
    assert is_relevant(["/p/.report.html.tmp"], ignored)


def test_a_project_below_a_directory_of_git_is_watched() -> None:
    """Some people keep the working trees of their branches inside ``.git``."""
    project = "/repository/.git/trees/feature"
    assert is_relevant([f"{project}/net.py"], [], [project])
    assert not is_relevant([f"{project}/.git", f"{project}/lib/.git/index"], [], [project])
