"""The environment variables of the dynamic loader in engine workers.

``LD_LIBRARY_PATH`` is passed on, and is in no key. An engine is built only with the planned version of TensorRT.

The Python bindings in these tests do not contain TensorRT's libraries, so the loader has to find them, as in an
installation from NVIDIA's archives. In one test, an edited copy of the library reports another version.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pytest

from tests.conftest import CommandLine, ran
from tests.programs import program
from tests.projects import copy_project
from trtbuild.core.engines.engine_job import ENGINE_ENVIRONMENT
from trtbuild.driver.workers.kinds import WorkerKind
from trtbuild.driver.workers.worker_process import Worker
from trtbuild.toolchain.libraries.table import installed_version

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is edited as code of an x86-64"),
    pytest.mark.cold_workers,  # the tests look at the libraries that a worker loads when it starts
]

#: The folder of TensorRT-RTX's libraries in this test environment.
INSTALLED = Path(sysconfig.get_path("purelib")) / "tensorrt_rtx_libs"
LIBRARY, PARSER = "libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"


class _Section(NamedTuple):
    """The fields of a section header in a 64-bit ELF file (``Elf64_Shdr``), in their order."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


_SHT_DYNSYM = 11  # <elf.h>: the type of the section with the dynamic symbols


def _set_version(library: Path, version: int) -> None:
    """Replace n by `version` in ``mov $n, %eax; ret``, the code of ``getInferLibVersion`` in an x86-64 library."""
    with open(library, "r+b") as file:
        file.seek(_code_offset(file, b"getInferLibVersion"))
        code = file.read(6)
        assert (code[0], code[5]) == (0xB8, 0xC3)  # the opcodes of `mov` to %eax and of `ret`
        file.seek(-6, os.SEEK_CUR)
        file.write(b"\xb8" + struct.pack("<I", version) + b"\xc3")


def _code_offset(file: BinaryIO, function: bytes) -> int:
    """Return the offset of a function's code in a library. The table of dynamic symbols has the function."""
    header = file.read(64)
    (sections_offset,), (entry_size, count) = (
        struct.unpack_from("<Q", header, 40),
        struct.unpack_from("<HH", header, 58),
    )
    file.seek(sections_offset)
    sections = [_Section(*struct.unpack("<IIQQQQIIQQ", file.read(entry_size))) for _ in range(count)]
    (symbols,) = (section for section in sections if section.type == _SHT_DYNSYM)
    file.seek(sections[symbols.link].offset)
    names = file.read(sections[symbols.link].size)
    file.seek(symbols.offset)
    for _ in range(symbols.size // symbols.entry_size):
        name, _info, _other, section_number, address, _size = struct.unpack("<IBBHQQ", file.read(24))
        if names[name : names.index(b"\0", name)] == function:
            section = sections[section_number]
            return section.offset + address - section.address
    raise AssertionError(f"the library has no function {function!r}")


@dataclass(frozen=True)
class Installation:
    """A Python with TensorRT bindings that do not include the libraries.

    The folder `planned` has the libraries of this test environment. `other` has copies that report another version.
    """

    python: Path
    planned: Path
    other: Path

    def build(self, project: CommandLine, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        return subprocess.run(
            [str(self.python), "-m", "trtbuild.cli.main", "build", "--json", *arguments],
            cwd=project.project,
            env={**variables, "TRTBUILD_CACHE_DIR": str(project.cache), **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("loader")
    packages = folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    for entry in INSTALLED.parent.iterdir():
        if entry.name not in (INSTALLED.name, "__pycache__"):
            (packages / entry.name).symlink_to(entry)
    (folder / "venv" / "bin").mkdir()
    (folder / "venv" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "venv" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    planned, other = folder / "planned", folder / "other"
    planned.symlink_to(INSTALLED)
    other.mkdir()
    shutil.copy(INSTALLED / LIBRARY, other / LIBRARY)
    shutil.copy(INSTALLED / PARSER, other / PARSER)
    _set_version(other / LIBRARY, 10702)  # 1.7.2
    yield Installation(folder / "venv" / "bin" / "python", planned, other)
    shutil.rmtree(other)


@pytest.fixture
def project(command_line: CommandLine) -> CommandLine:
    copy_project("mlp", command_line.project)
    return command_line


def _entries(cache: Path) -> set[Path]:
    """The files of records and blobs in a cache."""
    return {path for path in cache.rglob("*") if path.is_file() and {"ac", "cas"} & set(path.parts)}


def test_the_compiler_gets_the_library_path_and_the_key_does_not(
    installation: Installation, project: CommandLine, tmp_path: Path
) -> None:
    refused = installation.build(project)
    assert "libtensorrt_rtx.so.1: cannot open shared object file" in refused.stderr, "LD_LIBRARY_PATH is not necessary"
    built = installation.build(project, LD_LIBRARY_PATH=str(installation.planned))
    assert built.returncode == 0, built.stderr
    ordinary_build = CommandLine(project.project, tmp_path / "another cache")("build")
    keys = [
        [entry["key"] for entry in document["steps"] if entry["stage"] == "engine"]
        for document in (json.loads(built.stdout), ordinary_build)
    ]
    assert len(keys[0]) == 1
    assert keys[0] == keys[1]
    moved = tmp_path / "moved"
    moved.symlink_to(installation.planned)
    second = installation.build(project, LD_LIBRARY_PATH=f"/nowhere:{moved}")
    assert ran(json.loads(second.stdout)) == {}


@pytest.mark.parametrize("failing_stage", ["partition", "engine"])
def test_no_engine_is_built_with_a_library_of_another_version(
    installation: Installation, project: CommandLine, failing_stage: str
) -> None:
    if failing_stage == "engine":  # the earlier steps run with the right library
        first = installation.build(project, "--until", "convert", LD_LIBRARY_PATH=str(installation.planned))
        assert first.returncode == 0, first.stderr
    before = _entries(project.cache)
    built = installation.build(project, LD_LIBRARY_PATH=f"{installation.other}:{installation.planned}")
    assert built.returncode != 0
    (failed,) = [entry for entry in json.loads(built.stdout)["steps"] if entry["verdict"] == "failed"]
    version = installed_version("tensorrt-rtx")
    assert failed["stage"] == failing_stage
    assert failed["error"]["type"] == "EnvironmentFault"
    assert failed["error"]["text"] == (  # only the copy in the folder `other` reports 1.7.2
        f"tensorrt-rtx {version} was planned, but {installation.other / LIBRARY} is loaded, which is 1.7.2.116"
    )
    assert (
        f"→ take {installation.other} out of LD_LIBRARY_PATH, or install the toolchain of that version: "
        "pip install 'tensorrt-rtx==1.7.2.*'\n"
    ) in built.stderr
    if failing_stage == "engine":
        assert _entries(project.cache) == before
    assert not (project.project / "dist").exists()
    second = installation.build(project, LD_LIBRARY_PATH=str(installation.planned))
    assert second.returncode == 0, second.stderr
    assert ran(json.loads(second.stdout))[failing_stage] == 1


@pytest.mark.parametrize(("kind", "is_loaded"), [("engine", False), ("torch", True)])
@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT"])
def test_preloaded_code_is_not_in_an_engine_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, kind: WorkerKind, is_loaded: bool
) -> None:
    added = tmp_path / "added.so"
    (tmp_path / "added.c").write_text("unsigned la_version(unsigned version) { return version; }\n")
    subprocess.run([program("gcc"), "-shared", "-fPIC", "-o", added, tmp_path / "added.c"], check=True)
    monkeypatch.setenv(variable, str(added))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/nowhere")
    worker = Worker(kind, tmp_path / "store", tmp_path)
    try:
        process = Path(f"/proc/{worker._process.pid}")
        deadline = time.monotonic() + 60
        while "libc.so.6" not in (maps := (process / "maps").read_text()):
            assert time.monotonic() < deadline, "the worker never began"
            time.sleep(0.01)
        environment = dict(entry.split("=", 1) for entry in (process / "environ").read_text().split("\0") if entry)
        assert (str(added) in maps, variable in environment) == (is_loaded, is_loaded)
        assert environment["LD_LIBRARY_PATH"] == f"{tmp_path}:/nowhere"
        if kind == "engine":
            assert environment == {**ENGINE_ENVIRONMENT, "LD_LIBRARY_PATH": f"{tmp_path}:/nowhere"}
    finally:
        worker.kill()
        worker.end()
