"""The null build: what it answers, what it imports, and all that makes it hand over to the whole program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm.servers import servers
from trtbuild import null_build

MANIFEST = """\
version: 1
targets:
  ada: {sm: 89}
profiles:
  batch:
    x: {min: [1, 8], opt: [4, 8], max: [16, 8]}
models:
  net:
    source: {python: "net:build"}
    weights: net.safetensors
    inputs: {x: {dtype: float32}}
    profiles: [batch]
    targets: [ada]
"""

SOURCE = """\
import os
import torch
from parts import layer

def build():
    os.environ.get("NET_FLAVOUR")
    os.path.exists("override.json")
    os.listdir("data")
    return torch.nn.Sequential(layer.linear(), torch.nn.ReLU()).eval()
"""

HEAVY = ("click", "torch", "tensorrt_rtx", "pydantic", "yaml", "rich", "diskcache", "sqlite3", "numpy", "trtbuild.cli")


@dataclass
class Project:
    """A project that is built, and the console script."""

    root: Path
    environment: dict[str, str]

    def build(self, *arguments: str, **environment: str) -> tuple[str, bool]:
        """The script's standard output, and whether the null build wrote it."""
        variables = {**self.environment, **environment}
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *servers.start("trtbuild.__main__", variables), "build", *arguments],
            cwd=self.root,
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "trtbuild.null_build" in imported
        if "trtbuild.cli" in imported:
            return done.stdout, False
        heavy = [name for name in imported if name in HEAVY]
        assert not heavy
        return done.stdout, True

    def is_null(self, *arguments: str, **environment: str) -> bool:
        return self.build(*arguments, **environment)[1]

    def settle(self) -> None:
        """Two builds: one that does what there is to do, and, if its writing was too fresh to trust, another."""
        self.build()
        if not self.is_null():
            assert self.is_null()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    import torch
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("null") / "project"
    (root / "parts").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "trtbuild.yaml").write_text(MANIFEST)
    (root / "net.py").write_text(SOURCE)
    (root / "parts" / "__init__.py").write_text("")
    (root / "parts" / "layer.py").write_text("import torch\n\ndef linear():\n    return torch.nn.Linear(8, 8)\n")
    generator = torch.Generator().manual_seed(0)
    weights = {"0.weight": torch.randn(8, 8, generator=generator), "0.bias": torch.zeros(8)}
    save_file(weights, root / "net.safetensors")
    environment = {
        **os.environ,
        "TRTBUILD_CACHE_DIR": str(root.parent / "store"),
        "XDG_CONFIG_HOME": str(root.parent / "configuration"),
    }
    made = Project(root, environment)
    made.settle()
    return made


def test_the_output_equals_that_of_the_whole_program(project: Project) -> None:
    project.build("--json")
    shutil.rmtree(project.root / null_build.FOLDER)
    whole, null = project.build("--json")
    assert not null
    again, null = project.build("--json")
    assert null
    documents = [json.loads(text) for text in (whole, again)]
    durations = [document.pop("duration_s") for document in documents]
    assert documents[0] == documents[1]
    assert documents[0]["steps"]
    assert 0 < durations[1] < durations[0]
    said, null = project.build()
    if not null:
        said, null = project.build()
    assert null
    assert said.splitlines()[-1].startswith("up to date: ")
    assert project.build("--quiet")[0] == ""


def test_each_command_line_has_its_own(project: Project) -> None:
    assert not project.is_null("net")
    assert project.is_null("net")
    assert project.is_null()
    assert not project.is_null("-j", "1")
    assert project.is_null("-j", "1")


def test_a_directory_given_by_c_is_looked_at(project: Project) -> None:
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


def same_size_and_mtime(root: Path) -> None:
    path = root / "net.py"
    before = path.stat()
    path.write_text(path.read_text().replace("override", "overridE"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def a_package_before_a_module(root: Path) -> None:
    (root / "net").mkdir()
    shutil.copy(root / "net.py", root / "net" / "__init__.py")


def damage_an_output(root: Path) -> None:
    (engine,) = root.glob("dist/net/engines/*/*.plan")
    data = bytearray(engine.read_bytes())
    data[len(data) // 2] ^= 1
    engine.write_bytes(data)


CHANGES: dict[str, Callable[[Path], None]] = {
    "the manifest": append("trtbuild.yaml"),
    "a module": append("parts/layer.py"),
    "a module, with size and mtime as they were": same_size_and_mtime,
    "a file that must not be there": lambda root: (root / "override.json").touch(),
    "a package that comes before a module": a_package_before_a_module,
    "a listed directory": lambda root: (root / "data" / "more").touch(),
    "a touched weights file": lambda root: (root / "net.safetensors").touch(),
    "a missing output": lambda root: (root / "dist/net/index.json").unlink(),
    "a damaged output": damage_an_output,
    "no outputs": lambda root: shutil.rmtree(root / "dist"),
    "no cache": lambda root: shutil.rmtree(root.parent / "store"),
    "no state": lambda root: shutil.rmtree(root / ".trtbuild"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_hands_over_after_a_change_of(project: Project, change: Callable[[Path], None]) -> None:
    project.settle()
    kept = project.root.parent / "kept"
    shutil.copytree(project.root, kept, ignore=shutil.ignore_patterns("dist", ".trtbuild"))
    try:
        change(project.root)
        assert not project.is_null()
    finally:
        for path in project.root.iterdir():
            if path.name not in ("dist", ".trtbuild"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(kept, project.root, dirs_exist_ok=True)
        shutil.rmtree(kept)


REMOTE = "[[remote]]\nname = 'team'\nurl = 'file:///nonexistent/cache'\n"


def test_it_hands_over_after_a_change_of_the_configuration(project: Project) -> None:
    """It says whom to believe: what a stolen key signed must not stay up to date."""
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


def test_a_down_remote_is_not_requested_or_reported_again(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(REMOTE)
    path.chmod(0o600)
    chosen = {"TRTBUILD_CONFIG": str(path)}
    for _ in range(3):
        text, null = project.build("--json", **chosen)
        if null:
            break
    assert null
    assert json.loads(text)["remotes"] == []
    assert json.loads(text)["warnings"] == []


def test_an_answer_ends_when_a_trusted_key_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    snapshot = {
        "format": null_build.FORMAT,
        "directory": "/d",
        "arguments": ["build"],
        "interpreter": null_build.interpreter(),
        "own": null_build.own_variables(),
        "looks": null_build.output_settings(),
        "variables": {},
    }
    for until_s, stands in ((None, True), (2000.0, True), (1000.0, False), (999.0, False)):
        monkeypatch.setattr(null_build.time, "time", lambda: 1000.0)
        found = null_build._is_of_this_call({**snapshot, "until_s": until_s}, "/d", ["build"])
        assert found is stands


def test_no_secret_is_left_in_the_project(project: Project) -> None:
    """A snapshot compares variables; those that may hold a secret by their digests."""
    secrets = {
        "TRTBUILD_REMOTE_TEAM_TOKEN": "hunter2-token",
        "TRTBUILD_REMOTE_TEAM_PASSWORD": "hunter2-password",
        "TRTBUILD_REMOTES": "",
        "TRTBUILD_SOMETHING_NEW": "hunter2-new",
    }
    project.build(**secrets)
    if not project.is_null(**secrets):
        assert project.is_null(**secrets)
    assert not project.is_null(**{**secrets, "TRTBUILD_REMOTE_TEAM_TOKEN": "another"})
    for path in (project.root / ".trtbuild").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


@pytest.mark.parametrize(
    "variable", ["NET_FLAVOUR", "TRTBUILD_CACHE_DIR", "TRTBUILD_ANYTHING", "PYTHONPATH", "NO_COLOR"]
)
def test_it_hands_over_after_a_change_of_the_variable(project: Project, variable: str, tmp_path: Path) -> None:
    project.settle()
    value = str(project.root.parent / "." / "store") if variable == "TRTBUILD_CACHE_DIR" else str(tmp_path)
    if variable == "TRTBUILD_CACHE_DIR":
        (project.root.parent / "link").symlink_to(project.root.parent / "store")
        value = str(project.root.parent / "link")
    assert not project.is_null(**{variable: value})


def test_an_installation_is_seen(project: Project, tmp_path: Path) -> None:
    here = str(tmp_path)
    if not project.is_null(PYTHONPATH=here) and not project.is_null(PYTHONPATH=here):
        assert project.is_null(PYTHONPATH=here)
    (tmp_path / "torch-0.0.1.dist-info").mkdir()
    (tmp_path / "torch-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    found = subprocess.run(
        [Path(sys.executable).parent / "trtbuild", "build", "--json"],
        cwd=project.root,
        env={**project.environment, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    document = json.loads(found.stdout)
    assert document["totals"]["trace"]["hit"] == 0  # another torch: the whole program looked


@pytest.mark.parametrize("damage", [b"", b"{", b"{}\n", b"[]\n", b"\xff\xfe"])
def test_an_unreadable_snapshot_is_not_used(project: Project, damage: bytes) -> None:
    project.settle()
    for path in (project.root / null_build.FOLDER).iterdir():
        path.write_bytes(damage)
    assert not project.is_null()


def test_a_torn_snapshot_is_not_used(project: Project) -> None:
    project.settle()
    for path in (project.root / null_build.FOLDER).iterdir():
        head, _, text = path.read_bytes().partition(b"\n")
        path.write_bytes(head + b"\n" + text[:4])
    assert not project.is_null()


def test_a_build_that_is_forced_is_not_remembered(project: Project) -> None:
    assert not project.is_null("--force")
    assert not project.is_null("--force")


def test_a_manifest_that_is_a_link_to_nothing_is_seen(project: Project, tmp_path: Path) -> None:
    """As the whole program sees it: an error, and no reason to look in ``manifests/``."""
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_answer_that_cannot_be_written_is_an_error_with_words(project: Project) -> None:
    project.settle()
    with open("/dev/full", "w") as full:
        status, said = said_with(project, full.fileno())
    assert status == 1
    assert "standard output cannot be written" in said
    assert "Traceback" not in said


def test_a_reader_that_has_enough_does_not_matter(project: Project) -> None:
    project.settle()
    assert project.is_null()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert said_with(project, writing) == (0, "")
    finally:
        os.close(writing)


def test_a_closed_standard_output_is_an_error(project: Project) -> None:
    project.settle()
    assert project.is_null()
    command = ["sh", "-c", f'"{Path(sys.executable).parent}/trtbuild" build >&-']
    done = subprocess.run(
        command, cwd=project.root, env=project.environment, stderr=subprocess.PIPE, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: standard output is closed")


def said_with(project: Project, output: int) -> tuple[int, str]:
    """Exit status and standard error of a build, with `output` as its standard output."""
    script = Path(sys.executable).parent / "trtbuild"
    done = subprocess.run(
        [script, "build"],
        cwd=project.root,
        env=project.environment,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stderr


def test_another_encoding_is_another_answer(project: Project) -> None:
    project.settle()
    assert not project.is_null(PYTHONIOENCODING="latin-1")
    assert project.is_null(PYTHONIOENCODING="latin-1")
    assert project.is_null()
