"""Checks of torch, onnx and the toolchains: whether each can be imported, and whether the imported version is right.

The versions of the parts of a toolchain are checked, too. Each library is imported in a child process with a time limit,
because a broken library can crash or block the process that imports it.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from trtbuild.driver.doctor.finding import Finding, ok, problem, warning
from trtbuild.driver.project.environment import TORCH_DISTRIBUTIONS
from trtbuild.toolchain.libraries import runtimes, table
from trtbuild.toolchain.libraries.releases import version_numbers

#: The time limit of an import.
IMPORT_LIMIT_S = 120.0

#: Name of a distribution → name of its module, if the names differ.
_MODULE_NAMES = {"onnx-ir": "onnx_ir"}

_IMPORT_SCRIPT = """\
import importlib, sys
module = importlib.import_module(sys.argv[1])
print("trtbuild-found", getattr(module, "__version__", ""), getattr(module, "__file__", None))
"""


@dataclass(frozen=True)
class ImportResult:
    """The result of an import: the file of the module and its version (empty if it declares no version), or the error."""

    version: str = ""
    file: str = ""
    error: str | None = None


def import_in_child(module: str, limit_s: float = IMPORT_LIMIT_S) -> ImportResult:
    try:
        process = subprocess.run(
            [sys.executable, "-c", _IMPORT_SCRIPT, module],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ImportResult(error=f"importing it takes longer than {limit_s:.0f} s")
    except OSError as error:
        return ImportResult(error=f"no process can be started: {error.strerror}")
    match = re.search(r"^trtbuild-found (\S*) (.*)$", process.stdout, re.MULTILINE)
    if process.returncode == 0 and match:
        return ImportResult(match[1], match[2])
    last_line = (process.stderr.strip().splitlines() or [f"it ended with status {process.returncode}"])[-1]
    if process.returncode < 0:
        return ImportResult(error=f"importing it ends the process: {_signal_name(-process.returncode)}")
    return ImportResult(error=last_line[:300])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def check_torch_libraries() -> list[Finding]:
    """Check the libraries that trace and convert. Planning and downloading do not need them (rule 4 of `examination`)."""
    installed = {name: version for name in TORCH_DISTRIBUTIONS if (version := _installed_version(name)) is not None}
    if not installed:
        text = f"{', '.join(TORCH_DISTRIBUTIONS)} are not installed: this machine plans, and downloads results"
        return [ok("torch", text, "pip install 'trtbuild[torch]'  to build here")]
    with ThreadPoolExecutor(2) as pool:
        import_results = dict(
            zip(
                installed, pool.map(import_in_child, [_MODULE_NAMES.get(name, name) for name in installed]), strict=True
            )
        )
    findings = []
    for name in TORCH_DISTRIBUTIONS:
        if name in installed:
            findings.append(compare_versions(name, installed[name], import_results[name]))
        else:
            text = "not installed; models cannot be traced without it"
            findings.append(problem(name, text, "pip install 'trtbuild[torch]'"))
    return findings


def check_toolchains() -> list[Finding]:
    """Check the toolchains, which compile engines, and the runtimes, which only run version-compatible engines."""
    toolchains, small_runtimes = _check_installed_toolchains(), _check_installed_runtimes()
    if toolchains:
        return [*toolchains, *small_runtimes]
    text = "no toolchain is installed: engines cannot be built here, only downloaded for targets that pin a version"
    install = "pip install 'trtbuild[rtx]'"
    if small_runtimes:
        return [ok("toolchain", text, f"{install}  to build here"), *small_runtimes]
    return [warning("toolchain", text, install)]


def _check_installed_toolchains() -> list[Finding]:
    findings = []
    for flavour in table.FLAVOURS.values():
        version = _installed_version(flavour.distribution)
        if version is None:
            continue
        expected = flavour.library_versions.get(version, version)
        finding = compare_versions(flavour.distribution, version, import_in_child(flavour.module), expected)
        if finding.status == "problem" and _is_stub(flavour.distribution):
            why, requirement = finding.text.partition(": ")[2], f"'{flavour.distribution}=={version}'"
            finding = problem(
                flavour.distribution,
                f"{version}: {why}. The distribution on PyPI is a stub: the libraries are in NVIDIA's index",
                f"pip install --force-reinstall --extra-index-url https://pypi.nvidia.com {requirement}",
            )
        findings.append(finding)
        findings += _check_mixed_versions(flavour.distribution, version)
    return findings


def _check_installed_runtimes() -> list[Finding]:
    """Check the lean and the dispatch runtime of TensorRT."""
    findings = []
    for runtime in runtimes.RUNTIMES.values():
        version = runtimes.installed_runtime(runtime.name)
        if version is None:
            continue
        imported = import_in_child(next((name for name in runtime.modules if find_spec(name)), runtime.modules[0]))
        same = version_numbers(imported.version) == version_numbers(version)  # "10.7.0.post2" is 10.7.0
        finding = compare_versions(runtime.distribution, version, imported, imported.version if same else version)
        if finding.status == "ok":
            finding = ok(runtime.distribution, f"{version}: runs version-compatible engines of {runtime.toolchain}")
        findings.append(finding)
        findings += _check_mixed_versions(runtime.distribution, version)
    return findings


def compare_versions(name: str, version: str, imported: ImportResult, expected: str | None = None) -> Finding:
    """Check that a library could be imported, and that its version is `expected` (default: the installed `version`).

    An imported library without a version passes.
    """
    reinstall = f"pip install --force-reinstall '{name}=={version.partition('+')[0]}'"
    if imported.error is not None:
        return problem(name, f"{version} is installed, but cannot be imported: {imported.error}", reinstall)
    if imported.version and imported.version != (expected or version):
        text = f"{version} is installed, but {imported.file} is {imported.version}"
        return problem(name, text, f"pip uninstall -y {name} && {reinstall}")
    return ok(name, version)


def _check_mixed_versions(name: str, version: str) -> list[Finding]:
    """Return a problem if parts of a toolchain, such as ``tensorrt_rtx_cu13_libs``, have a version other than `version`."""
    part_name = re.compile(re.escape(name).replace("\\-", "[-_]") + r"[-_](?:cu\d+)(?:[-_].*)?", re.IGNORECASE)
    parts = {entry.name: entry.version for entry in metadata.distributions() if part_name.fullmatch(entry.name or "")}
    differing = {part: found for part, found in parts.items() if found != version}
    if not differing:
        return []
    differing_text = ", ".join(f"{part} {found}" for part, found in sorted(differing.items()))
    return [
        problem(
            name,
            f"{version} with parts of other versions: {differing_text}",
            _reinstall_command([name, *differing], version),
        )
    ]


def _reinstall_command(names: Sequence[str], version: str) -> str:
    return f"pip uninstall -y {' '.join(names)} && pip install '{names[0]}=={version}'"


def _is_stub(name: str) -> bool:
    """Whether an installed distribution has no shared library, and its ``-libs`` part is not installed."""
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError:
        return False
    stem = name.replace("-", "[-_]")
    parts = [
        entry for entry in metadata.distributions() if re.fullmatch(stem + r"(?:[-_]cu\d+)?[-_]libs", entry.name or "")
    ]
    return not parts and not any(".so" in file.name or file.name.endswith(".dll") for file in files)


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
