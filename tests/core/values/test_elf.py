"""Reading the headers of a shared library that this machine's compiler has written."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tests.programs import program
from trtbuild.core.values.elf import SharedLibrary, read_shared_library


def read(data: bytes) -> SharedLibrary | None:
    return read_shared_library(lambda offset, size: data[offset : offset + size])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("elf")
    (folder / "code.c").write_text("int nothing(void) { return 1; }\n")
    (folder / "main.c").write_text("extern int nothing(void); int more(void) { return nothing(); }\n")
    common = [program("g++"), "-shared", "-fPIC", "-xc"]
    subprocess.run([*common, "code.c", "-Wl,-soname,libnvinfer.so.8", "-o", "libnvinfer.so.8"], cwd=folder, check=True)
    subprocess.run([*common, "main.c", "-xnone", "libnvinfer.so.8", "-o", "libmain.so"], cwd=folder, check=True)
    return (folder / "libmain.so").read_bytes()


def test_the_processor_and_the_needed_libraries_are_read(library: bytes) -> None:
    found = read(library)
    assert found is not None
    assert found.processor == platform.machine()
    assert "libnvinfer.so.8" in found.needed


def test_another_processor_is_read(library: bytes) -> None:
    aarch64 = (183).to_bytes(2, "little")  # EM_AARCH64, in the field e_machine
    found = read(library[:18] + aarch64 + library[20:])
    assert found is not None and found.processor == "aarch64"


@pytest.mark.parametrize("size", [0, 3, 63, 64, 100, 300])
def test_a_truncated_library_is_not_read_or_names_no_needed_libraries(library: bytes, size: int) -> None:
    found = read(library[:size])
    assert found is None or found.needed == ()


def test_other_files_are_not_libraries(library: bytes) -> None:
    assert read(b"#!/bin/sh\n" * 20) is None
    assert read(library[:4] + b"\x01" + library[5:]) is None  # 32 bits
    assert read(library[:16] + b"\x02" + library[17:]) is None  # a program


def test_offsets_that_a_file_cannot_have_are_not_followed(library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.so"
    path.write_bytes(library[:32] + b"\xff" * 8 + library[40:])  # e_phoff
    with path.open("rb") as file:

        def read_file(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        with pytest.raises(ValueError, match="offset"):
            read_file(2**64 - 1, 1)
        assert read_shared_library(read_file) is None
