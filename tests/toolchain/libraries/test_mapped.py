"""Find the TensorRT library that a process has loaded, and check its version. Small C libraries stand in for TensorRT's."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs import program
from trtbuild.toolchain.libraries.mapped import check_mapped_versions, library_version, mapped_files
from trtbuild.toolchain.libraries.table import FLAVOURS, installed_version

#: Loads the libraries `files`, then checks the versions of the mapped libraries of `toolchain`. Prints "fits" or the error.
_PROGRAM = """
import ctypes, sys
from trtbuild.errors import EnvironmentFault
from trtbuild.toolchain.libraries.mapped import check_mapped_versions, library_version, mapped_files
from trtbuild.toolchain.libraries.table import FLAVOURS

toolchain, version, *files = sys.argv[1:]
for file in files:
    ctypes.CDLL(file)
mapped = {str(path) for path in mapped_files()}
assert mapped.issuperset(files), "the libraries are not mapped"
try:
    check_mapped_versions(FLAVOURS[toolchain], version)
    print("fits")
except EnvironmentFault as error:
    print(error)
"""


def compile_library(file: Path, *functions: tuple[str, int]) -> Path:
    """Compile a shared library, and return `file`. `functions` are pairs: a function's name, and the number it returns."""
    file.parent.mkdir(exist_ok=True)
    source = file.with_suffix(".c")
    source.write_text(
        "".join(f"int {name}(void) {{ return {value}; }}\n" for name, value in functions) or "int none;\n"
    )
    command = [program("gcc"), "-shared", "-fPIC", "-o", str(file), str(source), f"-Wl,-soname,{file.name}"]
    subprocess.run(command, check=True)
    return file


def check_output(toolchain: str, version: str, files: Sequence[Path], library_path: str = "") -> str:
    """The output of `_PROGRAM`, with `library_path` as LD_LIBRARY_PATH."""
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, toolchain, version, *map(str, files)],
        env={"LD_LIBRARY_PATH": library_path} if library_path else {},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize(
    ("reported_number", "planned_version", "fits"),
    [
        (8601, "8.6.1", True),
        (8601, "8.6.0", True),  # the bindings in the distribution 8.6.0 are those of 8.6.1
        (8600, "8.6.0", True),
        (8600, "8.6.1", False),
        (8502, "8.6.1", False),
        (9200, "9.2.0.post12.dev5", True),
        (100300, "10.3.0", True),
        (100301, "10.3.0", False),
        (110000, "10.3.0", False),
    ],
)
def test_compares_the_version_that_the_library_reports(
    tmp_path: Path, reported_number: int, planned_version: str, fits: bool
) -> None:
    file = compile_library(tmp_path / "libnvinfer.so.8", ("getInferLibVersion", reported_number))
    assert (check_output("tensorrt", planned_version, [file]) == "fits") is fits


def test_compares_build_numbers_if_both_versions_have_one(tmp_path: Path) -> None:
    file = compile_library(
        tmp_path / "libnvinfer.so.10", ("getInferLibVersion", 100900), ("getInferLibBuildVersion", 34)
    )
    assert check_output("tensorrt", "10.9.0.34", [file]) == "fits"
    assert check_output("tensorrt", "10.9.0", [file]) == "fits"
    assert "which is 10.9.0.34" in check_output("tensorrt", "10.9.0.35", [file])


def test_the_error_names_the_mapped_library_its_version_and_the_fix(tmp_path: Path) -> None:
    file = compile_library(tmp_path / "libnvinfer.so.10", ("getInferLibVersion", 100901))
    text = (
        f"tensorrt 10.3.0 was planned, but {file} is loaded, which is 10.9.1\n"
        "  → {way}, or install the toolchain of that version: pip install 'tensorrt==10.9.1.*'"
    )
    folder = "put the folder of the planned library first in LD_LIBRARY_PATH"
    assert check_output("tensorrt", "10.3.0", [file]) == text.format(way=folder)
    remove = f"take {tmp_path} out of LD_LIBRARY_PATH"
    assert check_output("tensorrt", "10.3.0", [file], f"/nowhere:{tmp_path}") == text.format(way=remove)


def test_rejects_a_wrong_library_even_if_the_right_one_is_loaded(tmp_path: Path) -> None:
    right = compile_library(tmp_path / "right" / "libnvinfer.so.10", ("getInferLibVersion", 100300))
    wrong = compile_library(tmp_path / "wrong" / "libnvinfer.so.9", ("getInferLibVersion", 9200))
    assert f"{wrong} is loaded" in check_output("tensorrt", "10.3.0", [right, wrong])


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("beside/libnvonnxparser.so.10", "fits"),
        ("beside/libnvonnxparser.so.10.3.0", "fits"),
        ("elsewhere/libnvonnxparser.so.10.3.0", "fits"),
        ("elsewhere/libnvonnxparser.so.10", "not the parser in the folder of"),
        ("beside/libnvonnxparser.so.10.4.0", "which is 10.4.0"),
    ],
)
def test_finds_the_version_of_a_parser_by_its_name_or_folder(tmp_path: Path, name: str, result: str) -> None:
    file = compile_library(tmp_path / "beside" / "libnvinfer.so.10", ("getInferLibVersion", 100300))
    parser = compile_library(tmp_path / name)
    assert result in check_output("tensorrt", "10.3.0", [file, parser])


def test_ignores_libraries_of_the_other_toolchain(tmp_path: Path) -> None:
    file = compile_library(tmp_path / "libnvinfer.so.8", ("getInferLibVersion", 8601))
    assert check_output("tensorrt-rtx", "1.7.1.116", [file]) == "fits"


def test_reads_the_version_of_a_deleted_library(tmp_path: Path) -> None:
    file = compile_library(tmp_path / "libnvinfer.so.10", ("getInferLibVersion", 100300))
    deleting_program = (
        "import ctypes, os, sys; from pathlib import Path\n"
        "from trtbuild.toolchain.libraries.mapped import library_version, mapped_files\n"
        "ctypes.CDLL(sys.argv[1]); os.unlink(sys.argv[1])\n"
        "assert 'libnvinfer.so.10 (deleted)' in Path('/proc/self/maps').read_text()\n"
        "assert Path(sys.argv[1]) in mapped_files()\n"
        "print(library_version(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", deleting_program, str(file)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.stdout, process.stderr) == ("(10, 3, 0)\n", "")


def test_the_installed_library_has_the_planned_version() -> None:
    import tensorrt_rtx  # noqa: F401

    flavour, version = FLAVOURS["tensorrt-rtx"], installed_version("tensorrt-rtx")
    assert version is not None
    (library,) = (path for path in mapped_files() if path.name.startswith(flavour.library))
    numbers = library_version(library)
    assert numbers is not None
    assert version.startswith(".".join(map(str, numbers)))
    assert any(path.name.startswith(flavour.parser_library) for path in mapped_files())
    check_mapped_versions(flavour, version)


def test_finds_a_file_whose_path_contains_a_line_separator(tmp_path: Path) -> None:
    file = tmp_path / "first\u2028second" / "library.so"
    file.parent.mkdir()
    file.write_bytes(b"content")
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ):
        assert file in mapped_files()
