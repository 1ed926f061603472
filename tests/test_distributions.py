"""The contents of the wheel and of the source distribution. The wheel runs in an environment without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Names that no path in a distribution may contain: caches, outputs, state of tools.
LEFTOVERS = re.compile(
    r"(^|/)(__pycache__|\.venv|\.git|\.trtbuild|dist|\.work|\.\w+_cache|\.hypothesis|site)(/|$)|\.pyc$"
)


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def in_sdist(self) -> set[str]:
        """The paths in the source distribution, relative to its only folder."""
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}

    def metadata(self) -> Message:
        (name,) = [name for name in self.in_wheel() if name.endswith(".dist-info/METADATA")]
        with zipfile.ZipFile(self.wheel) as archive:
            return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The files that `python -m build` makes. Without `--wheel`, it builds the wheel from the source distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=240,
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distributions(wheel, sdist)


def modules() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "trtbuild").rglob("*.py")}


def test_the_wheel_has_the_package_and_nothing_else(built: Distributions) -> None:
    paths = built.in_wheel()
    metadata = {name for name in paths if not name.startswith("trtbuild/")}
    page = {path.relative_to(ROOT).as_posix() for path in (ROOT / "trtbuild/cli/report_page").glob("*.[hcj]*")}
    assert len(page) == 10, "the template, the style sheet and the scripts of reports"
    assert paths - metadata == modules() | page | {"trtbuild/py.typed"}
    assert {re.sub(r"^trtbuild-[^/]+\.dist-info/", "", name) for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_source_distribution_has_sources_tests_and_documents_and_no_leftovers(built: Distributions) -> None:
    paths = built.in_sdist()
    assert modules() <= paths
    required = ["pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "mkdocs.yml"]
    required += ["constraints.txt", "cache/README.md", "docs/manifest.md", "docs/screens/first-build.svg", ".ci/run"]
    required += ["tests/conftest.py", "benchmarks/__main__.py", "manifests/vision.yaml", "trtbuild/py.typed"]
    assert [name for name in required if name not in paths] == []
    assert sorted(name for name in paths if LEFTOVERS.search(name)) == []
    assert [name for name in paths if name.startswith("cache/")] == ["cache/README.md"]


def test_the_metadata_is_complete(built: Distributions) -> None:
    metadata = built.metadata()
    assert metadata["Name"] == "trtbuild"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"] == "trtbuild developers"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"torch", "rtx", "tensorrt", "cuda", "objects", "verify", "report", "docs", "dev"} <= set(
        metadata.get_all("Provides-Extra") or []
    )
    assert str(metadata.get_payload()).startswith("# trtbuild\n")


def test_the_wheel_runs_in_a_clean_environment(built: Distributions, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    python = environment / "bin" / "python"
    install = ["pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(built.wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, timeout=240)

    def run(*command: str | Path, path: str = "") -> str:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.run(
            command, env={**variables, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    program = "import trtbuild, trtbuild.core.planning.model_plan; print(trtbuild.__file__)"
    assert run(python, "-c", program).startswith(str(environment))  # without any other distribution
    installed = sysconfig.get_path("purelib")  # the folder of the distributions that the wheel requires
    assert run(python, "-c", program, path=installed).startswith(str(environment))
    version = f"trtbuild, version {built.metadata()['Version']}"
    assert run(python, "-m", "trtbuild", "--version", path=installed) == version
    assert run(environment / "bin" / "trtbuild", "--version", path=installed) == version
