"""`--depfile` lists the dependencies of a real build. tests/docs/pages/test_make.py tests how make uses the depfile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import CommandLine
from trtbuild.driver.up_to_date.depfile import _MakeNames

MANIFEST = """\
version: 1
include: [shared/targets.yaml]
profiles: {rows: {x: {min: [1, 8], opt: [4, 8], max: [8, 8]}}}
models:
  net:
    source: {python: "models.net:build", deps: ["notes/*.txt"]}
    weights: net.safetensors
    inputs: {x: {}}
    profiles: [rows]
    targets: [ada]
    outputs: {package: dist/net, plans: dist/plans, triton: dist/repository}
"""

NET = """\
import os
from pathlib import Path
import torch
from torch import nn

def build() -> nn.Module:
    width = int(Path("OUTSIDE").read_text())
    os.listdir("configs")
    Path("link.txt").read_text()
    Path("settings $x.txt").read_text()
    if os.path.exists("not-there.txt"):
        raise ValueError
    return nn.Sequential(nn.Linear(8, width)).eval()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    import torch
    from safetensors.torch import save_file

    base = tmp_path_factory.mktemp("depfile")
    trtbuild = CommandLine(base / "project", base / "cache")
    project = trtbuild.project
    for folder in ("shared", "models", "configs", "notes"):
        (project / folder).mkdir(parents=True)
    outside = base / "width.txt"
    outside.write_text("8")
    (project / "trtbuild.yaml").write_text(MANIFEST)
    (project / "shared/targets.yaml").write_text("version: 1\ntargets: {ada: {sm: 89}}\n")
    (project / "models/net.py").write_text(NET.replace("OUTSIDE", str(outside)))
    (project / "notes/a note.txt").write_text("?")
    (project / "configs/one.yaml").touch()
    (project / "settings $x.txt").write_text("?")
    (project / "target.txt").write_text("?")
    (project / "link.txt").symlink_to("target.txt")
    save_file({"0.weight": torch.zeros(8, 8), "0.bias": torch.zeros(8)}, project / "net.safetensors")
    process = trtbuild.run("build", "--depfile", "build/net.d")
    assert process.returncode == 0, process.stderr
    return trtbuild


def rule(path: Path) -> tuple[list[str], list[str]]:
    """Return the targets and the prerequisites of the first rule, as make reads them."""
    head, _, rest = path.read_text().partition("\n\n")[0].partition(": \\\n")
    return _names(head), _names(rest.replace("\\\n", " "))


def _names(text: str) -> list[str]:
    words = re.findall(r"(?:\\.|\S)+", text)
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]


def test_every_file_that_was_read_is_a_prerequisite(built: CommandLine) -> None:
    _, prerequisites = rule(built.project / "build/net.d")
    assert sorted(prerequisites) == sorted(
        [
            "trtbuild.yaml",
            "shared/targets.yaml",
            "models/net.py",
            "net.safetensors",
            "notes",  # the pattern of `deps` matches files in this directory
            "notes/a note.txt",
            "settings $x.txt",
            "link.txt",
            "target.txt",
            "configs",
            str(built.project.parent / "width.txt"),
        ]
    )


def test_each_prerequisite_is_also_the_target_of_an_empty_rule(built: CommandLine) -> None:
    text = (built.project / "build/net.d").read_text()
    empty_rules = [paragraph.strip() for paragraph in text.split("\n\n")[1:]]
    assert all(line.endswith(":") for line in empty_rules)
    assert [_names(line[:-1])[0] for line in empty_rules] == rule(built.project / "build/net.d")[1]


def test_the_outputs_are_the_targets_unless_others_are_named(built: CommandLine) -> None:
    outputs = ["dist/net/index.json", "dist/plans/ada/model.plan", "dist/repository/net/1/trtbuild.json"]
    assert rule(built.project / "build/net.d")[0] == outputs
    named = ["--depfile-target", "a b.stamp", "--depfile-target", "c"]
    assert built.run("build", "--depfile", "build/named.d", *named).returncode == 0
    assert rule(built.project / "build/named.d")[0] == ["a b.stamp", "c"]


def test_paths_are_relative_to_the_working_directory(built: CommandLine) -> None:
    caller = CommandLine(built.project.parent, built.cache)
    assert caller.run("build", "-C", "project", "--depfile", "of-the-caller.d").returncode == 0
    targets, prerequisites = rule(built.project.parent / "of-the-caller.d")
    assert targets[0] == "project/dist/net/index.json"
    assert {"project/models/net.py", "width.txt"} <= set(prerequisites)
    beside = CommandLine(built.project / "models", built.cache)
    assert beside.run("build", "-C", "..", "--depfile", "../beside.d").returncode == 0
    assert {"net.py", "../trtbuild.yaml"} <= set(rule(built.project / "beside.d")[1])


def test_two_dots_after_a_link_lead_to_the_parent_of_the_links_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "shared/models").mkdir(parents=True)
    (project / "models").symlink_to(tmp_path / "shared/models")
    monkeypatch.chdir(project)
    names = _MakeNames(project)
    assert names.make_name("models/../c.yaml") == "../shared/c.yaml"
    assert names.make_name(f"{tmp_path}/project/models/../c.yaml") == f"{tmp_path}/shared/c.yaml"


def test_a_null_build_writes_the_depfile_only_if_it_differs(built: CommandLine) -> None:
    path = built.project / "build/net.d"
    text, mtime_ns = path.read_bytes(), path.stat().st_mtime_ns
    assert built.run("build", "--depfile", "build/net.d").returncode == 0
    assert path.stat().st_mtime_ns == mtime_ns
    path.unlink()
    assert built.run("build", "--depfile", "build/net.d").returncode == 0
    assert path.read_bytes() == text
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


def test_a_model_that_is_not_cacheable_is_always_out_of_date(built: CommandLine) -> None:
    manifest = built.project / "trtbuild.yaml"
    manifest.write_text(MANIFEST.replace("deps:", "cacheable: false, deps:"))
    try:
        assert built.run("build", "--depfile", "build/uncacheable.d").returncode == 0
    finally:
        manifest.write_text(MANIFEST)
    prerequisites = rule(built.project / "build/uncacheable.d")[1]
    assert "trtbuild-always" in prerequisites
    assert "models/net.py" in prerequisites


def test_a_failed_build_does_not_change_the_depfile(built: CommandLine) -> None:
    path, source = built.project / "build/net.d", built.project / "models/net.py"
    text, code = path.read_bytes(), source.read_text()
    source.write_text("raise ValueError\n")
    try:
        assert built.run("build", "--depfile", "build/net.d").returncode == 1
    finally:
        source.write_text(code)
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--depfile", "models"], "it is a directory"),
        (["--depfile", "trtbuild.yaml/net.d"], "trtbuild.yaml/net.d"),
        (["--depfile-target", "x"], "--depfile FILE"),
        (["--depfile", "x.d", "--depfile-target", "a=b"], "cannot have a target with this name"),
    ],
)
def test_rejects_invalid_arguments_about_the_depfile(built: CommandLine, arguments: list[str], message: str) -> None:
    process = built.run("build", *arguments)
    assert process.returncode == 2
    assert message in process.stderr
