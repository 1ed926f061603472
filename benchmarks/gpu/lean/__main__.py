"""Run version-compatible engines with TensorRT's lean and dispatch runtimes of other versions:
``python -m benchmarks.gpu.lean DIR --wheels WHEELS``.

DIR is the folder of ``python -m benchmarks.gpu write``. First run ``trtbuild build --until convert`` in DIR/lean. WHEELS is
a folder with wheels of the runtimes, ``tensorrt_lean`` and ``tensorrt_dispatch``. Use a Python that has the project's
version of the full TensorRT. Torch is not needed.

The full TensorRT builds one network in three ways (`benchmarks.gpu.lean.project`), and runs all packages. Then each runtime
gets a process without the full TensorRT. This process runs the packages with trtbuild, and the outputs are compared. Other
processes ask the Python bindings of the full TensorRT and of each runtime about each plan. If a process crashes, its row
shows this.

The exit code is 1 if the packages could not be built. Otherwise it is 0, even if a check is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figure import Check, Measurement, Row, Value, line, table, to_json
from benchmarks.gpu.lean.project import MODELS
from trtbuild.toolchain.libraries.table import installed_version

_ROOT = Path(__file__).parents[3]
#: The name of the library that builds the engines, as rows show it.
_FULL = "the full TensorRT"
#: The major versions whose runtimes run plans of TensorRT 8.6, according to NVIDIA's documentation.
_DOCUMENTED_VERSIONS = (8, 9, 10)
#: The largest allowed error of float32 engines that may use TF32, as in `benchmarks.gpu.host.tolerance`.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Runtime:
    """The unpacked wheels of one runtime in one version. `module` is its module with the bindings."""

    name: str
    version: str
    folder: Path

    @property
    def module(self) -> str:
        bindings = f"{self.name}_bindings"
        return bindings if (self.folder / bindings).is_dir() else self.name

    @property
    def is_for_this_python(self) -> bool:
        """Whether the wheels have bindings for this version of Python. If not, only the builder may use their library."""
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        return any(f"Tag: {tag}-" in file.read_text() for file in self.folder.glob("*bindings*.dist-info/WHEEL"))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def unpack(wheels: Path, work: Path) -> list[Runtime]:
    """Unpack the wheels, into one folder for each runtime and version. Returns the runtimes in the order of their names."""
    folders: dict[tuple[str, str], Path] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        match = re.match(
            r"(tensorrt_(?:lean|dispatch))(?:_cu\d+)?(?:_libs|_bindings)?-([0-9.]+)(?:\.post\d+)?-", wheel.name
        )
        if match is None:
            continue
        folder = folders.setdefault((match[1], match[2]), work / f"{match[1]}-{match[2]}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return [Runtime(name, version, folder) for (name, version), folder in folders.items()]


def link_site(folder: Path) -> Path:
    """Fill `folder` with links to all modules that this Python can import, and return it.

    TensorRT, the standard library and this repository are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    standard = Path(os.__file__).resolve().parent
    for entry in map(Path, filter(None, sys.path)):
        if not entry.is_dir() or entry.resolve() in (standard, standard / "lib-dynload", _ROOT):
            continue
        for source in entry.iterdir():
            link = folder / source.name
            if not source.name.lower().startswith("tensorrt") and not link.is_symlink():
                link.symlink_to(source.resolve())
    return folder


class Lean:
    """One run of the measurement."""

    def __init__(self, project: Path, wheels: Path, work: Path) -> None:
        self.project = project
        self.results = work / "results"
        self.results.mkdir(parents=True, exist_ok=True)
        #: A folder with the lean library, under the names by which TensorRT's builder opens it.
        self.lean_library = work / "lean-library"
        self.lean_library.mkdir(exist_ok=True)
        self.runtimes = unpack(wheels, work)
        self.site = link_site(work / "site-without-tensorrt")
        #: The name of each process → its output.
        self.details: dict[str, Any] = {}

    def rows(self) -> Iterator[Row]:
        """Build, run with the full TensorRT and with each runtime, and ask the bindings of all of them about each plan."""
        yield from self._build()
        yield from self._packages(_FULL, self._process(["write", *self._paths()]), MODELS)
        runtimes = [runtime for runtime in self.runtimes if runtime.is_for_this_python]
        for runtime in runtimes:
            is_documented = int(runtime.version.partition(".")[0]) in _DOCUMENTED_VERSIONS
            expected = ["compatible"] if is_documented else []
            yield from self._packages(str(runtime), self._process(["run", *self._paths()], runtime), expected)
            if not is_documented:
                process = self._process(["run_any_version", *self._paths()], runtime)
                yield from self._packages(f"{runtime}, tried against the documentation", process, None)
        for each in (None, *runtimes):
            yield from self._answers(each)

    def _build(self) -> Iterator[Row]:
        """Try to build without the lean library, then build with it. Yields rows about both builds, and about the plans."""
        version = installed_version("tensorrt")
        lean = next((each for each in self.runtimes if (each.name, each.version) == ("tensorrt_lean", version)), None)
        if lean is None:
            raise ValueError(f"there is no wheel of tensorrt_lean {version}, which the builder needs")
        library = next(lean.folder.glob("tensorrt_lean*/libnvinfer_lean.so.*"))
        without = self._trtbuild(["build", "compatible", "--json"])
        text = " ".join(f"{error.get('text')} → {error.get('hint')}" for error in _errors(without.stdout))
        yield Check(
            "without the lean library, the build names its wheel", f"tensorrt-lean=={version}" in text, text[:500]
        )
        for name in (library.name, f"libnvinfer_lean.so.{version}"):
            link = self.lean_library / name
            link.unlink(missing_ok=True)
            link.symlink_to(library)
        build = self._trtbuild(["build", "--json"], self.lean_library)
        self.details["build"] = {"stdout": build.stdout[-20000:], "stderr": build.stderr[-5000:]}
        failures = "; ".join(str(error.get("text")) for error in _errors(build.stdout))
        yield Check("with the lean library, all packages are built", build.returncode == 0, failures or "no errors")
        if build.returncode:
            raise RuntimeError(f"the packages were not built: {failures or build.stderr[-3000:]}")
        lean_bytes = library.read_bytes()
        for name in MODELS:
            plan = self._plan(name).read_bytes()
            yield Measurement(f"the plan of {name}", Value("size", len(plan), "B"))
            contains = lean_bytes in plan
            yield Check(f"{name} contains the lean library as it is", contains == (name == "compatible"), str(contains))

    def _packages(
        self, name: str, process: subprocess.CompletedProcess[str], expected: Collection[str] | None
    ) -> Iterator[Row]:
        """Yield rows about each package in one process.

        The process should run the packages in `expected`, and refuse the others. If `expected` is None, the process may run
        or refuse each package.
        """
        values = _values(process.stdout)
        self.details[name] = {"values": values, "ended": _end(process)}
        found = {value["model"]: value for value in values if "model" in value}
        for model in MODELS:
            value = found.get(model)
            should_run = None if expected is None else model in expected
            if value is None:
                yield Check(f"{name}: {model}", False, f"{_end(process)}: {process.stderr[-500:]}")
            elif "error" in value:
                text = f"{value['error']}: {value['text']} → {value['hint']}"
                yield Check(f"{name}: {model} is refused", should_run is not True, text)
            else:
                text = f"by {value['library']}, worst error {value['worst']:.1e} at {value['where']}"
                yield Check(f"{name}: {model} runs", should_run is not False and value["worst"] <= _TOLERANCE, text)
                yield Measurement(f"{name}: {model}", Value("a call", value["call_s"]))
        imported = [value["modules"] for value in values if "modules" in value]
        if name != _FULL and imported:
            yield Check(f"{name}: the full TensorRT is not imported", "tensorrt" not in imported[0], str(imported[0]))

    def _answers(self, runtime: Runtime | None) -> Iterator[Row]:
        """Yield rows with the answers of the bindings about each plan. A row is met if the process did not crash."""
        module = "tensorrt" if runtime is None else runtime.module
        name = _FULL if runtime is None else str(runtime)
        for model in MODELS:
            for host_code in ("no_host_code", "host_code"):
                process = self._process(["answers", module, str(self._plan(model)), host_code], runtime)
                values = _values(process.stdout)
                label = f"bindings of {name}: {model}, {host_code}"
                self.details[label] = {"values": values, "ended": _end(process), "stderr": process.stderr[-2000:]}
                answer = next((value for value in values if value["call"] == "deserialize_cuda_engine"), None)
                if answer is None:
                    result, errors = "no answer", ""
                else:
                    result = "accepted" if answer["value"] else "refused"
                    errors = " ".join(text for text in answer["log"] if "ERROR" in text)
                yield Check(label, process.returncode == 0, f"{result}, {_end(process)} {errors}"[:400])

    def _plan(self, model: str) -> Path:
        return next((self.project / "dist" / model).rglob("*.plan"))

    def _paths(self) -> list[str]:
        return [str(self.project / "dist"), str(self.results)]

    def _process(self, arguments: Sequence[str], runtime: Runtime | None = None) -> subprocess.CompletedProcess[str]:
        """Run `benchmarks.gpu.lean.process` with the full TensorRT, or with `runtime` in its place."""
        command, path = [sys.executable, "-m", "benchmarks.gpu.lean.process", *arguments], [str(_ROOT), *sys.path]
        if runtime is not None:
            command.insert(1, "-S")  # so that no .pth file adds the folder with the full TensorRT
            path = [str(_ROOT), str(runtime.folder), str(self.site)]
        return self._run(command, {"PYTHONPATH": os.pathsep.join(filter(None, path))})

    def _trtbuild(self, arguments: Sequence[str], library_path: Path | None = None) -> subprocess.CompletedProcess[str]:
        variables = {
            "TRTBUILD_CACHE_DIR": str(self.project / "cache"),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path]),
        }
        if library_path is not None:
            earlier = os.environ.get("LD_LIBRARY_PATH", "")
            variables["LD_LIBRARY_PATH"] = f"{library_path}:{earlier}" if earlier else str(library_path)
        return self._run([sys.executable, "-m", "trtbuild", *arguments], variables)

    def _run(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRTBUILD_")}
        environment |= variables
        try:
            return subprocess.run(
                command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "it took longer than 300 s")


def _errors(document: str) -> list[dict[str, Any]]:
    try:
        build = json.loads(document)
    except ValueError:
        return []
    failed = [step["error"] for step in build.get("steps", []) if step.get("error")]
    return [*build.get("errors", []), *failed]


def _values(output: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in output.splitlines() if text.startswith("{")]


def _end(process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return f"status {process.returncode}"


def _machine() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        gpu = "no GPU"
    return f"{gpu}; tensorrt {installed_version('tensorrt')}; Python {sys.version.split()[0]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.lean", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--wheels", type=Path, required=True, metavar="WHEELS", help="wheels of the runtimes")
    parser.add_argument("--work", type=Path, default=Path("lean-work"), metavar="DIR", help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows and answers to this file")
    options = parser.parse_args(arguments)
    lean = Lean((options.folder / "lean").absolute(), options.wheels.absolute(), options.work.absolute())
    machine, rows, status = _machine(), [], 0
    print(machine, "; ".join(map(str, lean.runtimes)), sep="; ", flush=True)
    try:
        for row in lean.rows():
            rows.append(("lean", row))
            print(line(row), flush=True)
    except (RuntimeError, ValueError) as error:
        print(f"stopped: {error}")
        status = 1
    if options.json is not None:
        document = {"machine": machine, "rows": [to_json(row) for _, row in rows], "details": lean.details}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print("\n" + table(rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
