"""Makes torchvision run beside a build of PyTorch without CUDA.

PyPI has torchvision only for the CUDA build of PyTorch. torchvision's library needs libraries of that build, although the
kernels for the CPU do not call them. So stub libraries with the same names replace them here.

torchvision is installed in a separate folder (`TORCHVISION` in the Makefile). Otherwise other libraries would try to import
it, and fail without the stub libraries.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.programs import program

FOLDER = Path(sys.prefix) / "torchvision"

#: Libraries that torchvision's library needs, and that a PyTorch without CUDA lacks.
_MISSING = ("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.13")


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables with which a process can import torchvision.

    If PyTorch has no CUDA, writes the stub libraries to `folder`. Skips the test if torchvision is not installed.
    """
    if not FOLDER.is_dir():
        pytest.skip("torchvision is not installed: make build installs it")
    variables = {"PYTHONPATH": str(FOLDER)}
    if torch.version.cuda is None:
        _write_libraries(folder)
        variables["LD_LIBRARY_PATH"] = str(folder)
    return variables


def _write_libraries(folder: Path) -> None:
    """Write stub libraries that define the CUDA symbols which torchvision's library needs and this PyTorch lacks."""
    libraries = [*(Path(torch.__file__).parent / "lib").glob("lib*.so")]
    known = set().union(*(_symbols("--defined-only", library) for library in libraries))
    missing = _symbols("--undefined-only", FOLDER / "torchvision" / "_C.so") - known
    names = sorted(name for name in missing if "cuda" in name)
    # torchvision's library calls functions of CUDA's runtime when it is loaded. These have C names, and their stubs
    # return 0. A C++ name (``_Z…``) needs only an address.
    lines = (f"char {name}[64];" if name.startswith("_Z") else f"long {name}(void) {{ return 0; }}" for name in names)
    source = folder / "stubs.c"
    source.write_text("\n".join(lines))
    versions = folder / "versions"
    for library in _MISSING:
        is_versioned = library[-1].isdigit()  # the loader expects versions of the symbols of CUDA's runtime
        versions.write_text(f"{library} {{ global: *; }};\n")
        options = [f"-Wl,-soname,{library}", *([f"-Wl,--version-script={versions}"] if is_versioned else [])]
        command = [program("gcc"), "-shared", "-fPIC", "-w", *options, str(source), "-o", str(folder / library)]
        subprocess.run(command, check=True)


def _symbols(option: str, library: Path) -> set[str]:
    """The dynamic symbols of a library, without versions. ``nm`` selects the symbols by `option`."""
    listed = subprocess.run([program("nm"), "-D", option, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.split()}
