"""One engine cache for a team: checkouts of several people, with different paths and virtual environments, share engines.

The first checkout builds, and uploads to three kinds of remotes. Another checkout of the same files runs no step.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ran
from tests.projects import copy_project, edit
from tests.store.conftest import object_server
from tests.store.transports.nginx import running

__all__ = ["object_server"]

#: Changes of the manifest. The engines of wide layers are stored in chunks, the engine of the last partition in one file.
WIDE = (("[1, 8]", "[1, 600]"), ("[4, 8]", "[4, 600]"), ("[8, 8]", "[8, 600]"))
NOBODY = 65534  # the user id of `nobody`


@dataclass
class Person:
    """Someone with a checkout of the project in `folder`, who runs trtbuild with the interpreter `python`.

    `user` is the id of the user that runs trtbuild, or None for the user of the tests.
    """

    folder: Path
    python: str
    environment: Mapping[str, str]
    user: int | None = None
    umask: int = 0o022

    def checkout(self) -> None:
        copy_project("blocks", self.folder, *WIDE)
        edit(self.folder / "models" / "layer.py", "(8, 8)", "(600, 600)")
        edit(self.folder / "models" / "net.py", "return x", "return torch.relu(x)")
        if self.user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, self.user, self.user)

    def __call__(self, *arguments: str, expect: int = 0) -> Any:
        """Run trtbuild with ``--json`` and return the document. Fails if the exit code is not `expect`."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        result = subprocess.run(
            [self.python, "-m", "trtbuild.cli.main", *arguments, "--json"],
            cwd=self.folder,
            env={**inherited, "HOME": str(self.folder), **self.environment},
            capture_output=True,
            text=True,
            timeout=240,
            user=self.user,
            umask=self.umask,
        )
        assert result.returncode == expect, (
            f"exit {result.returncode}\n{result.stdout[-2000:]}\n{result.stderr[-6000:]}"
        )
        return json.loads(result.stdout)


@dataclass
class Team:
    """A team whose first checkout was built. `remotes`: name → URL for readers. `document`: the first build's output."""

    folder: Path
    remotes: Mapping[str, str]
    environment: Mapping[str, str]
    first: Person
    document: Any


@pytest.fixture(scope="module")
def readable_folder() -> Iterator[Path]:
    """A directory that other users can read. The directories of pytest have mode 0700."""
    folder = Path(tempfile.mkdtemp(prefix="trtbuild-team-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def team(readable_folder: Path, object_server: str) -> Iterator[Team]:
    shared = readable_folder / "shared"
    shared.mkdir()
    shared.chmod(0o2777)
    (readable_folder / "nginx").mkdir()
    environment = {
        "AWS_ENDPOINT_URL": object_server,
        "AWS_ACCESS_KEY_ID": "an-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
    }
    with running(readable_folder / "nginx") as nginx:
        remotes = {"nfs": f"file://{shared}", "web": nginx.url_of("writer"), "store": "s3://cache/team"}
        setting = " ".join(f"{name}=rw:{url}" for name, url in remotes.items())
        first = Person(readable_folder / "first", sys.executable, {**environment, "TRTBUILD_REMOTES": setting})
        first.checkout()
        document = first("build")
        yield Team(readable_folder, {**remotes, "web": nginx.url_of("reader")}, environment, first, document)


def base_python() -> str:
    """An interpreter of this Python version. If possible, it is one that the user `another_user()` can run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/python{version}"):
        probe = [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        with suppress(OSError):
            if subprocess.run(probe, user=another_user(), capture_output=True, text=True).stdout.strip() == version:
                return python
    return sys.executable


def another_user() -> int | None:
    """The id of another user, or None if this process cannot run as another user."""
    return NOBODY if os.geteuid() == 0 else None


def can_be_run(python: str, user: int | None) -> bool:
    """Whether `user` can import trtbuild with this interpreter. None stands for the user of this process."""
    with suppress(OSError):
        return subprocess.run([python, "-c", "import trtbuild"], user=user, check=False).returncode == 0
    return False


@pytest.fixture(scope="module")
def another_python(readable_folder: Path) -> str:
    """The interpreter of a new virtual environment, with the packages of the tests' environment."""
    folder = readable_folder / "venv"
    subprocess.run([base_python(), "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "packages-of-the-tests.pth").write_text("\n".join(lines))
    return str(folder / "bin" / "python")


def test_the_first_build_is_in_every_remote(team: Team) -> None:
    assert ran(team.document)["engine"] == 4
    assert [report["name"] for report in team.document["remotes"]] == ["nfs", "web", "store"]
    for report in team.document["remotes"]:
        assert report["records_sent"] > 10 and report["records_not_sent"] == 0, json.dumps(report)
        assert report["warnings"] == []
    assert team.document["warnings"] == []


@pytest.mark.parametrize("remote", ["nfs", "web", "store"])
def test_another_checkout_runs_no_step(team: Team, another_python: str, remote: str) -> None:
    user = another_user() if can_be_run(another_python, another_user()) else None
    environment = {**team.environment, "TRTBUILD_REMOTES": f"{remote}=r:{team.remotes[remote]}"}
    colleague = Person(team.folder / f"of-{remote}" / "deeper", another_python, environment, user, 0o077)
    colleague.checkout()
    (team.folder / f"of-{remote}").chmod(0o755)
    plan = colleague("plan")
    assert {step["verdict"] for step in plan["steps"]} == {"hit"}
    assert not (colleague.folder / "cache").exists(), "a plan fetches no blobs"
    built = colleague("build", "--frozen")
    assert ran(built) == {}
    assert {step["source"] for step in built["steps"]} == {remote}
    outputs, first_outputs = colleague.folder / "dist" / "net", team.first.folder / "dist" / "net"
    files = [path.relative_to(first_outputs) for path in sorted(first_outputs.rglob("*")) if path.is_file()]
    assert len(files) > 2
    for file in files:
        assert (outputs / file).read_bytes() == (first_outputs / file).read_bytes()
    assert ran(colleague("build")) == {}


def test_an_edit_builds_only_the_changed_steps_and_a_third_checkout_has_hits(team: Team, another_python: str) -> None:
    environment = {**team.environment, "TRTBUILD_REMOTES": f"nfs=rw:{team.remotes['nfs']}"}
    colleague = Person(team.folder / "edits", sys.executable, environment)
    colleague.checkout()
    manifest = colleague.folder / "trtbuild.yaml"
    edit(manifest, "opt: [4, 600]", "opt: [3, 600]")
    document = colleague("build")
    assert "lower" not in ran(document) and "convert" not in ran(document)
    third = Person(team.folder / "third", another_python, environment)
    third.checkout()
    (third.folder / "trtbuild.yaml").write_text(manifest.read_text())
    assert ran(third("build", "--frozen")) == {}


def test_blobs_that_a_remote_has_lost_are_built_again_or_are_an_error_with_frozen(
    team: Team, another_python: str
) -> None:
    """The remote has the records. A build finds out that blobs are missing only when it fetches them."""
    lossy = team.folder / "lossy"
    shutil.copytree(team.remotes["nfs"].removeprefix("file://"), lossy)
    plans = [step["outputs"]["plan"] for step in team.document["steps"] if step["stage"] == "engine"]
    lost_blobs = [path for path in lossy.glob("cas/*/*") if path.name in {plan["sha256"] for plan in plans}]
    for path in lost_blobs:
        path.unlink()
    assert lost_blobs, "no plan is stored in one file"
    environment = {"TRTBUILD_REMOTES": f"lossy=r:file://{lossy}"}
    deployer = Person(team.folder / "deploys", another_python, environment)
    deployer.checkout()
    frozen = deployer("build", "--frozen", expect=3)
    assert frozen["errors"][0]["type"] == "FrozenError"
    assert any("blobs that records name" in text for text in frozen["warnings"])
    builder = Person(team.folder / "builds", sys.executable, environment)
    builder.checkout()
    built = builder("build")
    assert set(ran(built)) >= {"engine"} and "trace" not in ran(built)
    assert built["remotes"][0]["blobs_gone"] >= 1
