"""The choice of the library that runs the plans (serialized engines) of a target.

A full TensorRT builds and runs engines. NVIDIA has two smaller libraries that run only version-compatible plans: the lean
runtime and the dispatch runtime (TensorRT documentation, "How TensorRT Works", "Runtime Options").

Rules
1. `_ROWS` lists which library runs which plans. The first row whose library is installed and runs the plans is chosen.
2. A version-compatible plan contains the lean runtime of the version that built it. Libraries of later versions load this
   runtime, which is host code, and run the plan with it ("Version Compatibility").
3. If a version-compatible plan was built with exclude_lean_runtime, only the version that built it runs the plan. The
   lean runtime of this version is enough. A later version would need ``IRuntime.load_runtime``, which trtbuild does not
   call.
4. A later version runs only plans of some older versions (`_oldest_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trtbuild.core.packages.package_index import PackedTarget

#: A full TensorRT has the name of its toolchain. With ``-`` in place of ``_``, each name is that of a Python distribution.
LibraryName = Literal["tensorrt-rtx", "tensorrt", "tensorrt_lean", "tensorrt_dispatch"]

_Kind = Literal["full", "lean", "dispatch"]

#: Toolchain → kind → the library of this kind that runs the toolchain's plans. TensorRT-RTX has only a full library.
_LIBRARIES: Mapping[str, Mapping[_Kind, LibraryName]] = {
    "tensorrt-rtx": {"full": "tensorrt-rtx"},
    "tensorrt": {"full": "tensorrt", "lean": "tensorrt_lean", "dispatch": "tensorrt_dispatch"},
}


@dataclass(frozen=True)
class EngineLibrary:
    """The library that runs the plans of a target.

    `version` is the version of the installed library, and `plan_version` the version that built the plans. `host_code`:
    whether the plans contain the lean runtime, which is host code. Then the library must be allowed to load host code."""

    name: LibraryName
    version: str
    plan_version: str
    host_code: bool

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class _Row:
    """A library of the kind `kind` runs the plans of the targets for which `runs` is true.

    The library must have the version that built the plans. If `may_be_later`, it may have a later version (rule 4)."""

    kind: _Kind
    may_be_later: bool
    runs: Callable[[PackedTarget], bool]


#: The preferred library is first (rule 1).
_ROWS = (
    _Row("full", False, lambda target: True),
    _Row("full", True, lambda target: target.runs_on_later_versions),
    _Row("lean", False, lambda target: target.version_compatible),
    _Row("lean", True, lambda target: target.runs_on_later_versions),
    _Row("dispatch", True, lambda target: target.runs_on_later_versions),
)


def choose_library(target: PackedTarget, installed: Mapping[str, str | None]) -> EngineLibrary | None:
    """Choose the installed library that runs the plans of `target`; None if no library runs them.

    `installed` maps the name of a library to its version, or to None if it is not installed."""
    libraries = _LIBRARIES.get(target.toolchain, {})
    for row in _ROWS:
        name = libraries.get(row.kind)
        version = installed.get(name) if name is not None else None
        if name is None or version is None or not row.runs(target):
            continue
        if version == target.version or (row.may_be_later and _runs_compatible_plans(version, target.version)):
            return EngineLibrary(name, version, target.version, target.runs_on_later_versions)
    return None


def library_problem(target: PackedTarget, installed: Mapping[str, str | None]) -> tuple[str, str]:
    """Return the reason why `choose_library` finds no library, and a hint with the command that installs one."""
    names = _LIBRARIES.get(target.toolchain, {}).values()
    found = {name: version for name in names if (version := installed.get(name)) is not None}
    if target.runs_on_later_versions:
        return _problem_of_compatible_plans(target, found)
    if target.version_compatible:
        return _problem_without_lean_runtime(target, found)
    return _problem_of_exact_plans(target, found)


def _problem_of_compatible_plans(target: PackedTarget, found: Mapping[LibraryName, str]) -> tuple[str, str]:
    install_smallest = f"pip install '{_requirement(target)}', which is enough to run these engines"
    if not found:
        text = f"it needs {_builder(target)}, or a runtime for version-compatible plans, and none is installed"
        return text, install_smallest
    reasons = [_version_problem(name, version, target.version) for name, version in found.items()]
    hint = f"{install_smallest}, or {_install_command(target)}"
    return f"it was built by {_builder(target)}, and {'; '.join(reasons)}", hint


def _problem_without_lean_runtime(target: PackedTarget, found: Mapping[LibraryName, str]) -> tuple[str, str]:
    commands = [_install_command(target)]
    if "lean" in _LIBRARIES.get(target.toolchain, {}):
        commands.append(f"pip install 'tensorrt-lean=={target.version}'")
    if not found:
        return f"it needs {_builder(target)}, which is not installed", ", or ".join(commands)
    return (
        f"its plans leave the lean runtime of {_builder(target)} out (builder.exclude_lean_runtime), and without it "
        f"{_text(found)} does not run them",
        ", or ".join([*commands, "build the package without exclude_lean_runtime"]),
    )


def _problem_of_exact_plans(target: PackedTarget, found: Mapping[LibraryName, str]) -> tuple[str, str]:
    if not found:
        return f"it needs {_builder(target)}, which is not installed", _install_command(target)
    for name, version in found.items():
        if name == target.toolchain:
            text = f"it was built by {_builder(target)}, but {version} is installed"
            return text, f"{_install_command(target)}, or build the package with {version}"
    return (
        f"its plans are not version-compatible, so only {_builder(target)} runs them, and not {_text(found)}",
        f"{_install_command(target)}, or build the package with builder: {{version_compatible: true}}",
    )


def _builder(target: PackedTarget) -> str:
    """The toolchain that built the plans, with its version."""
    return f"{target.toolchain} {target.version}"


def _install_command(target: PackedTarget) -> str:
    return f"pip install '{target.toolchain}=={target.version}'"


def _text(found: Mapping[LibraryName, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in found.items())


def _version_problem(name: str, version: str, built_by: str) -> str:
    if _numbers(version) < _numbers(built_by):
        return f"{name} {version} is older"
    oldest = ".".join(map(str, _oldest_plan(version)))
    return f"{name} {version} runs version-compatible plans of {oldest} and later"


def _requirement(target: PackedTarget) -> str:
    """The pip requirement of the smallest library that runs the version-compatible plans of a target."""
    major = _numbers(target.version)[0]
    first_refusing = next(
        later for later in range(major + 1, major + 4) if not _runs_compatible_plans(f"{later}", target.version)
    )
    kinds = _LIBRARIES.get(target.toolchain, {})
    name = kinds.get("dispatch", target.toolchain).replace("_", "-")
    return f"{name}>={target.version},<{first_refusing}"


def _runs_compatible_plans(version: str, built_by: str) -> bool:
    """Whether libraries of `version` run version-compatible plans of `built_by` (rule 4)."""
    plan_version = _numbers(f"{built_by}.0")  # "10" is 10.0
    return _numbers(version) >= _numbers(built_by) and plan_version >= _oldest_plan(version)


def _oldest_plan(version: str) -> tuple[int, ...]:
    """The oldest version whose version-compatible plans `version` runs.

    Version compatibility begins with 8.6. "Engines built with TensorRT 8 work with TensorRT 9 and TensorRT 10 runtimes"
    (documentation of 10.16.1, "Version Compatibility"). "Engines built with TensorRT 10 work with TensorRT 11"
    (documentation of 11.1, which names no older version). So 11 and later are assumed to run plans of the previous
    major version, and no older plans."""
    major = _numbers(version)[0]
    return (8, 6) if 8 <= major <= 10 else (major - 1, 0)


def _numbers(version: str) -> tuple[int, ...]:
    """``10.14.1.48.post1`` → (10, 14, 1, 48)."""
    return tuple(int(part) for part in version.split(".") if part.isdigit()) or (0,)
