"""The null build finds nothing to do: its answers, its imports, and the changes after which the whole program runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.projects import WITH_WEIGHTS, copy_project, write_weights
from tests.warm.servers import servers
from trtbuild import null_build

SOURCE = """\
import os
import torch
from parts import layer

def build():
    os.environ.get("NET_FLAVOUR")
    os.path.exists("override.json")
    os.path.islink("parts")
    os.listdir("data")
    return torch.nn.Sequential(layer.linear(), torch.nn.ReLU()).eval()
"""

#: Modules that a null build must not import.
HEAVY = ("click", "torch", "tensorrt_rtx", "pydantic", "yaml", "rich", "diskcache", "sqlite3", "numpy", "trtbuild.cli")


@dataclass
class Project:
    """A built project, in which `build` runs the console script."""

    root: Path
    environment: dict[str, str]

    def build(self, *arguments: str, **environment: str) -> tuple[str, bool]:
        return self.run("build", *arguments, **environment)

    def run(self, command: str, *arguments: str, **environment: str) -> tuple[str, bool]:
        """Run a command. Return its standard output, and whether the null build wrote it."""
        variables = {**self.environment, **environment}
        process = subprocess.run(
            [
                sys.executable,
                "-X",
                "importtime",
                *servers.python_arguments("trtbuild.__main__", variables),
                command,
                *arguments,
            ],
            cwd=self.root,
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines() if "|" in line}
        assert "trtbuild.null_build" in imported
        if "trtbuild.cli" in imported:
            return process.stdout, False
        heavy = [name for name in imported if name in HEAVY]
        assert not heavy
        return process.stdout, True

    def is_null(self, *arguments: str, **environment: str) -> bool:
        return self.build(*arguments, **environment)[1]

    def settle(self) -> None:
        """Build until the null build answers. While a file is too new, a build writes no snapshot for the null build."""
        self.build()
        if not self.is_null():
            assert self.is_null()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("null") / "project"
    copy_project("mlp", root, WITH_WEIGHTS)
    (root / "parts").mkdir()
    (root / "data").mkdir()
    (root / "net.py").write_text(SOURCE)
    (root / "parts" / "__init__.py").write_text("")
    (root / "parts" / "layer.py").write_text("import torch\n\ndef linear():\n    return torch.nn.Linear(8, 8)\n")
    write_weights(root / "net.safetensors", {"0.weight": (8, 8), "0.bias": (8,)})
    environment = {
        **os.environ,
        "TRTBUILD_CACHE_DIR": str(root.parent / "store"),
        "XDG_CONFIG_HOME": str(root.parent / "configuration"),
    }
    built = Project(root, environment)
    built.settle()
    return built


def test_the_null_build_prints_the_answer_of_the_whole_program(project: Project) -> None:
    project.build("--json")
    shutil.rmtree(project.root / null_build.SNAPSHOT_FOLDER)
    text, is_null = project.build("--json")
    assert not is_null
    answer = json.loads(text)
    text, is_null = project.build("--json")
    assert is_null
    null_answer = json.loads(text)
    assert 0 < null_answer.pop("duration_s") < answer.pop("duration_s")
    assert null_answer == answer
    assert answer["steps"]
    output, is_null = project.build()
    if not is_null:
        output, is_null = project.build()
    assert is_null
    assert output.splitlines()[-1].startswith("up to date: ")
    assert project.build("--quiet")[0] == ""


def test_each_command_line_has_a_separate_snapshot(project: Project) -> None:
    assert not project.is_null("net")
    assert project.is_null("net")
    assert project.is_null()
    assert not project.is_null("-j", "1")
    assert project.is_null("-j", "1")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_plan_with_nothing_to_run_has_a_snapshot(project: Project, arguments: tuple[str, ...]) -> None:
    whole, was_null = project.run("plan", *arguments)
    again, is_null = project.run("plan", *arguments)
    assert (was_null, is_null) == (False, True)
    if arguments:
        whole, again = ({**json.loads(text), "duration_s": 0} for text in (whole, again))
    assert again == whole


def test_a_new_plan_is_made_after_an_entry_of_the_cache_was_removed(project: Project) -> None:
    project.run("plan")
    steps = json.loads(project.run("plan", "--json")[0])["steps"]
    key = next(step["key"] for step in steps if step["stage"] == "engine")
    record = project.root.parent / "store" / "ac" / key[:2] / key
    kept = project.root.parent / "kept"
    record.rename(kept)
    try:
        text, is_null = project.run("plan")
        assert not is_null
        assert "no longer in the cache" in text or "no longer has it" in text
        assert project.is_null(), "for a build, the null build must not check entries of the cache"
    finally:
        kept.rename(record)
    assert "nothing to run" in project.run("plan")[0]


def test_a_new_plan_is_made_after_an_edit_of_a_source(project: Project) -> None:
    project.run("plan")
    source = project.root / "net.py"
    text = source.read_text()
    try:
        source.write_text(f"{text}# edited\n")
        planned, is_null = project.run("plan")
        assert not is_null and "trace" in planned
    finally:
        source.write_text(text)
    project.settle()


def test_the_option_c_names_the_directory_of_the_project(project: Project) -> None:
    elsewhere = Project(project.root.parent, project.environment)
    assert not elsewhere.is_null("-C", "project")
    assert elsewhere.is_null("-C", "project")
    assert not elsewhere.is_null("-Cproject")
    assert elsewhere.is_null("-Cproject")


def append(path: str, text: str = "\n# a comment\n") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with open(root / path, "a") as file:
            file.write(text)

    return change


def edit_with_the_same_size_and_mtime(root: Path) -> None:
    path = root / "net.py"
    before = path.stat()
    path.write_text(path.read_text().replace("override", "overridE"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def add_a_package_before_a_module(root: Path) -> None:
    (root / "net").mkdir()
    shutil.copy(root / "net.py", root / "net" / "__init__.py")


def damage_an_output(root: Path) -> None:
    (engine,) = root.glob("dist/net/engines/*/*.plan")
    data = bytearray(engine.read_bytes())
    data[len(data) // 2] ^= 1
    engine.write_bytes(data)


def replace_by_a_link(root: Path) -> None:
    (root / "parts").rename(root / "real parts")
    (root / "parts").symlink_to("real parts")


CHANGES: dict[str, Callable[[Path], None]] = {
    "the manifest": append("trtbuild.yaml"),
    "a module": append("parts/layer.py"),
    "a module, with the same size and modification time": edit_with_the_same_size_and_mtime,
    "a file that did not exist at the trace": lambda root: (root / "override.json").touch(),
    "a package that comes before a module": add_a_package_before_a_module,
    "a directory that becomes a link": replace_by_a_link,
    "a listed directory": lambda root: (root / "data" / "more").touch(),
    "a touched weights file": lambda root: (root / "net.safetensors").touch(),
    "a missing output": lambda root: (root / "dist/net/index.json").unlink(),
    "a damaged output": damage_an_output,
    "no outputs": lambda root: shutil.rmtree(root / "dist"),
    "no cache": lambda root: shutil.rmtree(root.parent / "store"),
    "no state": lambda root: shutil.rmtree(root / ".trtbuild"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_whole_program_runs_after_a_change_of(project: Project, change: Callable[[Path], None]) -> None:
    project.settle()
    copy = project.root.parent / "copy"
    shutil.copytree(project.root, copy, ignore=shutil.ignore_patterns("dist", ".trtbuild"))
    try:
        change(project.root)
        assert not project.is_null()
    finally:
        for path in project.root.iterdir():
            if path.name not in ("dist", ".trtbuild"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(copy, project.root, dirs_exist_ok=True)
        shutil.rmtree(copy)


def test_the_whole_program_runs_after_a_link_in_a_listed_directory_leads_to_something_else(
    project: Project, tmp_path: Path
) -> None:
    """The time of the listed directory does not change."""
    link, target = project.root / "data" / "more", tmp_path / "target"
    link.symlink_to(target)
    try:
        target.mkdir()
        project.settle()
        target.rmdir()
        assert not project.is_null()  # the link is broken now
        project.settle()
        target.mkdir()
        assert not project.is_null()
    finally:
        link.unlink()


REMOTE = "[[remote]]\nname = 'team'\nurl = 'file:///nonexistent/cache'\n"


def test_the_whole_program_runs_after_a_change_of_the_configuration(project: Project) -> None:
    """The configuration names the trusted keys. A result is outdated if the key that signed it is no longer trusted."""
    project.settle()
    path = project.root.parent / "configuration" / "trtbuild" / "config.toml"
    path.parent.mkdir(parents=True)
    try:
        for text in ("[cache]\nmax_size = '1GiB'\n", "[cache]\nmax_size = '2GiB'\n"):
            path.write_text(text)
            path.chmod(0o600)
            assert not project.is_null()
            project.settle()
        path.write_text("[cache]\nmaximum = '1GiB'\n")
        with pytest.raises(AssertionError, match="'maximum' is not known"):
            project.build()
    finally:
        shutil.rmtree(path.parent.parent)
    assert not project.is_null()


def test_a_null_build_neither_uses_nor_reports_a_remote_that_is_down(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(REMOTE)
    path.chmod(0o600)
    environment = {"TRTBUILD_CONFIG": str(path)}
    for _ in range(3):
        text, is_null = project.build("--json", **environment)
        if is_null:
            break
    assert is_null
    assert json.loads(text)["remotes"] == []
    assert json.loads(text)["warnings"] == []


def test_a_snapshot_expires_with_a_trusted_key(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = {"call": null_build.call_line("/d", ["build"]), "variables": []}
    for until_s, is_valid in ((math.inf, True), (2000.0, True), (1000.0, False), (999.0, False)):
        monkeypatch.setattr(null_build.time, "time", lambda: 1000.0)
        result = null_build._is_for_this_call({**snapshot, "until_s": until_s}, "/d", ["build"])
        assert result is is_valid


def test_no_secret_is_written_into_the_project(project: Project) -> None:
    """A snapshot has the digests of environment variables that may be secrets, not their values."""
    secrets = {
        "TRTBUILD_REMOTE_TEAM_TOKEN": "hunter2-token",
        "TRTBUILD_REMOTE_TEAM_PASSWORD": "hunter2-password",
        "TRTBUILD_REMOTES": "",
        "TRTBUILD_SOMETHING_NEW": "hunter2-new",
    }
    assert any(project.is_null(**secrets) for _ in range(3))
    assert not project.is_null(**{**secrets, "TRTBUILD_REMOTE_TEAM_TOKEN": "another"})
    for path in (project.root / ".trtbuild").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize(
    "variable", ["NET_FLAVOUR", "TRTBUILD_CACHE_DIR", "TRTBUILD_ANYTHING", "XDG_STATE_HOME", "PYTHONPATH", "NO_COLOR"]
)
def test_the_whole_program_runs_after_a_change_of_the_variable(project: Project, variable: str, tmp_path: Path) -> None:
    project.settle()
    value = tmp_path
    if variable == "TRTBUILD_CACHE_DIR":  # another path of the same cache
        value = tmp_path / "link"
        value.symlink_to(project.root.parent / "store")
    assert not project.is_null(**{variable: str(value)})


def test_the_whole_program_runs_after_an_installation(project: Project, tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert any(project.is_null(PYTHONPATH=folder) for _ in range(3))
    (tmp_path / "torch-0.0.1.dist-info").mkdir()
    (tmp_path / "torch-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    process = subprocess.run(
        [Path(sys.executable).parent / "trtbuild", "build", "--json"],
        cwd=project.root,
        env={**project.environment, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    document = json.loads(process.stdout)
    assert document["totals"]["trace"]["hit"] == 0  # the whole program has found the other torch


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"{}\n", b"[]\n\n", b"\xff\xfe", b"[]\ninf 0 0\n", b"\xff\ninf 4 0\n\0\0\0\0"]
)
def test_a_snapshot_that_cannot_be_read_is_ignored(project: Project, damage: bytes) -> None:
    project.settle()
    for path in (project.root / null_build.SNAPSHOT_FOLDER).iterdir():
        path.write_bytes(damage)
    assert not project.is_null()


@pytest.mark.parametrize("lost_bytes", [1, 8, 100])
def test_an_incomplete_snapshot_is_ignored(project: Project, lost_bytes: int) -> None:
    project.settle()
    for path in (project.root / null_build.SNAPSHOT_FOLDER).iterdir():
        path.write_bytes(path.read_bytes()[:-lost_bytes])
    assert not project.is_null()


def test_a_forced_build_has_no_snapshot(project: Project) -> None:
    assert not project.is_null("--force")
    assert not project.is_null("--force")


def test_the_whole_program_runs_after_the_manifest_becomes_a_dangling_link(project: Project, tmp_path: Path) -> None:
    """The whole program reports an error. It does not read ``manifests/`` instead."""
    root = tmp_path / "moved"
    shutil.copytree(project.root, root, ignore=shutil.ignore_patterns(".trtbuild"))
    (root / "manifests").mkdir()
    text = (root / "trtbuild.yaml").read_text().replace("weights: ", "weights: ../")
    (root / "manifests" / "net.yaml").write_text(text)
    (root / "trtbuild.yaml").unlink()
    elsewhere = Project(root, project.environment)
    elsewhere.settle()
    (root / "trtbuild.yaml").symlink_to("nowhere")
    with pytest.raises(AssertionError, match="it is a link to nothing"):
        elsewhere.build()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this device")
def test_an_answer_that_cannot_be_written_is_an_error_with_a_message(project: Project) -> None:
    project.settle()
    with open("/dev/full", "w") as full:
        status, error = build_with_output(project, full.fileno())
    assert status == 1
    assert "standard output cannot be written" in error
    assert "Traceback" not in error


def test_a_reader_that_stops_early_is_not_an_error(project: Project) -> None:
    project.settle()
    assert project.is_null()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert build_with_output(project, writing) == (0, "")
    finally:
        os.close(writing)


def test_a_closed_standard_output_is_an_error(project: Project) -> None:
    project.settle()
    assert project.is_null()
    command = ["sh", "-c", f'"{Path(sys.executable).parent}/trtbuild" build >&-']
    process = subprocess.run(
        command, cwd=project.root, env=project.environment, stderr=subprocess.PIPE, text=True, timeout=240, check=False
    )
    assert (process.returncode, process.stderr.splitlines()[0]) == (2, "error: standard output is closed")


def build_with_output(project: Project, output: int) -> tuple[int, str]:
    """Run a build with `output` as its standard output. Return the exit status and standard error."""
    script = Path(sys.executable).parent / "trtbuild"
    process = subprocess.run(
        [script, "build"],
        cwd=project.root,
        env=project.environment,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    return process.returncode, process.stderr


def test_each_encoding_has_a_separate_snapshot(project: Project) -> None:
    project.settle()
    assert not project.is_null(PYTHONIOENCODING="latin-1")
    assert project.is_null(PYTHONIOENCODING="latin-1")
    assert project.is_null()
