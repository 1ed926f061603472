"""A change of a dependency outside the project starts a build. A change in a directory that a build writes does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.driver.watching.watched import MODEL
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.watching.dependencies import dependencies

MANIFEST = """\
version: 1
include: [../shared/profiles.yaml]
targets: {ada: {sm: 89}}
models:
  net:
    source: {python: "net:build"}
    inputs: {x: }
    profiles: [rows]
    targets: [ada]
    plugins: {library: ../shared/libroi.so, operators: {"mylib::roi": RoiPlugin}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    folder, shared = tmp_path / "project", tmp_path / "shared"
    folder.mkdir()
    shared.mkdir()
    (folder / "trtbuild.yaml").write_text(MANIFEST)
    (folder / "net.py").write_text(MODEL)
    (shared / "profiles.yaml").write_text("profiles: {rows: {x: {min: [1, 4], opt: [2, 4], max: [8, 4]}}}\n")
    (shared / "libroi.so").write_bytes(b"a library")
    return folder


def test_included_manifests_and_libraries_of_plugins_outside_the_project_start_builds(project: Path) -> None:
    outside = dependencies(Request(project)).outside
    shared = project.parent / "shared"
    assert sorted(outside) == [str(shared / "libroi.so"), str(shared / "profiles.yaml")]
    assert None not in outside.values()  # None: the file does not exist


def test_a_file_behind_a_link_that_leads_out_of_the_project_starts_a_build(project: Path) -> None:
    """The notifier watches the project's directories. So it reports a change of the link, and not of the file."""
    weights = project.parent / "shared" / "net.safetensors"
    weights.write_bytes(b"first")
    link = project / "net.safetensors"
    link.symlink_to("../shared/net.safetensors")
    manifest = project / "trtbuild.yaml"
    manifest.write_text(MANIFEST.replace("    inputs:", "    weights: net.safetensors\n    inputs:"))
    before = dependencies(Request(project)).outside[str(link)]
    weights.write_bytes(b"the second")
    assert dependencies(Request(project)).outside[str(link)] != before


def test_the_files_of_a_project_that_cannot_be_planned_start_builds(project: Path) -> None:
    """The mending of such a file makes the project valid."""
    shared = project.parent / "shared"
    profiles = shared / "profiles.yaml"
    valid = profiles.read_text()
    profiles.write_text("profiles: {")
    assert str(profiles) in dependencies(Request(project)).outside
    profiles.unlink()
    assert dependencies(Request(project)).outside[str(profiles)] is None
    profiles.write_text(valid)
    (shared / "libroi.so").unlink()
    assert dependencies(Request(project)).outside[str(shared / "libroi.so")] is None
    (shared / "libroi.so").write_bytes(b"a library")
    assert list(dependencies(Request(project, models=("another",))).outside) == [str(profiles)]


def test_the_written_directories_have_the_paths_that_the_notifier_reports(project: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)
    written = dependencies(Request(link)).written
    assert str(project / ".trtbuild") in written and str(project / "dist" / "net") in written
    assert not [path for path in written if path.startswith(str(link))]
