"""The choice of the library that runs a target's plans, and the reason why no installed library runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.packages.engine_libraries import choose_library, library_problem
from trtbuild.core.packages.package_index import PackedTarget
from trtbuild.core.partition.partitions import Partitions

EXACT = PackedTarget(
    name="hopper",
    sm=90,
    sms=(90,),
    toolchain="tensorrt",
    version="10.3.0",
    version_compatible=False,
    compatibility="exact",
    platform="linux-x86_64",
    partitions=Partitions((), ()),
    programs={},
    engines={},
    layers={},
)
COMPATIBLE = replace(EXACT, version_compatible=True)
WITHOUT_LEAN = replace(COMPATIBLE, exclude_lean_runtime=True)
RTX = replace(EXACT, toolchain="tensorrt-rtx", version="1.7.1.116")

#: A short name for each library.
NAMES = {"full": "tensorrt", "lean": "tensorrt_lean", "dispatch": "tensorrt_dispatch", "rtx": "tensorrt-rtx"}


def installed(**versions: str) -> dict[str, str | None]:
    return {name: versions.get(short) for short, name in NAMES.items()}


def chosen(target: PackedTarget, **versions: str) -> str | None:
    library = choose_library(target, installed(**versions))
    return None if library is None else str(library)


ALL_LATER = {"full": "10.16.1.11", "lean": "10.16.1.11", "dispatch": "10.16.1.11"}


@pytest.mark.parametrize(
    ("versions", "exact", "compatible", "without_lean"),
    [
        ({"full": "10.3.0"}, "tensorrt 10.3.0", "tensorrt 10.3.0", "tensorrt 10.3.0"),
        ({"full": "10.16.1.11"}, None, "tensorrt 10.16.1.11", None),
        ({"lean": "10.3.0"}, None, "tensorrt_lean 10.3.0", "tensorrt_lean 10.3.0"),
        ({"lean": "10.16.1.11"}, None, "tensorrt_lean 10.16.1.11", None),
        ({"dispatch": "10.3.0"}, None, "tensorrt_dispatch 10.3.0", None),
        ({"dispatch": "11.4.0.106"}, None, "tensorrt_dispatch 11.4.0.106", None),
        ({"rtx": "1.7.1.116"}, None, None, None),
        (ALL_LATER, None, "tensorrt 10.16.1.11", None),
        ({**ALL_LATER, "full": "10.3.0"}, "tensorrt 10.3.0", "tensorrt 10.3.0", "tensorrt 10.3.0"),
        ({**ALL_LATER, "full": "10.2.0"}, None, "tensorrt_lean 10.16.1.11", None),
        ({**ALL_LATER, "lean": "10.3.0"}, None, "tensorrt 10.16.1.11", "tensorrt_lean 10.3.0"),
        ({"lean": "10.16.1.11", "dispatch": "10.16.1.11"}, None, "tensorrt_lean 10.16.1.11", None),
        ({"lean": "10.2.0", "dispatch": "10.16.1.11"}, None, "tensorrt_dispatch 10.16.1.11", None),
    ],
)
def test_the_chosen_library_runs_this_kind_of_plan(
    versions: dict[str, str], exact: str | None, compatible: str | None, without_lean: str | None
) -> None:
    assert chosen(EXACT, **versions) == exact
    assert chosen(COMPATIBLE, **versions) == compatible
    assert chosen(WITHOUT_LEAN, **versions) == without_lean


def test_host_code_is_allowed_only_for_plans_that_contain_the_lean_runtime() -> None:
    full, lean = installed(full="10.3.0"), installed(lean="10.3.0")
    choices = [choose_library(EXACT, full), choose_library(COMPATIBLE, full), choose_library(WITHOUT_LEAN, lean)]
    assert [choice is not None and choice.host_code for choice in choices] == [False, True, False]


@pytest.mark.parametrize(
    ("built_by", "runs", "refused"),
    [
        ("8.6.0", ["8.6.0", "8.6.1.post1", "9.3.0", "10.0.1", "10.16.1.11"], ["8.5.3", "11.0.0.114", "11.4.0.106"]),
        ("10.0.1", ["10.0.1", "10.16.1.11", "11.4.0.106"], ["8.6.1", "9.3.0", "12.0"]),
        ("11.0.0.114", ["11.0.0.114", "11.4.0.106", "12.1"], ["10.16.1.11", "13.0"]),
    ],
)
def test_later_versions_run_version_compatible_plans(built_by: str, runs: list[str], refused: list[str]) -> None:
    target = replace(COMPATIBLE, version=built_by)
    for kind in ("full", "lean", "dispatch"):
        assert all(chosen(target, **{kind: version}) == f"{NAMES[kind]} {version}" for version in runs)
        assert all(chosen(target, **{kind: version}) is None for version in refused)


def test_an_rtx_plan_runs_with_rtx_only() -> None:
    assert chosen(RTX, rtx="1.7.1.116", **ALL_LATER) == "tensorrt-rtx 1.7.1.116"
    assert chosen(replace(RTX, version_compatible=True), **ALL_LATER) is None


PROBLEMS: dict[str, tuple[PackedTarget, dict[str, str], str, str]] = {
    "a small runtime, and plans that are not version-compatible": (
        EXACT,
        {"lean": "10.16.1.11", "dispatch": "11.4.0.106"},
        "its plans are not version-compatible, so only tensorrt 10.3.0 runs them, "
        "and not tensorrt_lean 10.16.1.11 and tensorrt_dispatch 11.4.0.106",
        "pip install 'tensorrt==10.3.0', or build the package with builder: {version_compatible: true}",
    ),
    "another version, and plans that are not version-compatible": (
        EXACT,
        {"full": "10.9.0", "lean": "10.16.1.11"},
        "it was built by tensorrt 10.3.0, but 10.9.0 is installed",
        "pip install 'tensorrt==10.3.0', or build the package with 10.9.0",
    ),
    "nothing for version-compatible plans": (
        COMPATIBLE,
        {},
        "it needs tensorrt 10.3.0, or a runtime for version-compatible plans, and none is installed",
        "pip install 'tensorrt-dispatch>=10.3.0,<12', which is enough to run these engines",
    ),
    "runtimes that are too old and too new": (
        replace(COMPATIBLE, version="8.6.1"),
        {"full": "8.6.0", "dispatch": "11.4.0.106"},
        "it was built by tensorrt 8.6.1, and tensorrt 8.6.0 is older; tensorrt_dispatch 11.4.0.106 runs version-compatible "
        "plans of 10.0 and later",
        "pip install 'tensorrt-dispatch>=8.6.1,<11', which is enough to run these engines, or pip install "
        "'tensorrt==8.6.1'",
    ),
    "a plan without the lean runtime, and a dispatch runtime": (
        WITHOUT_LEAN,
        {"dispatch": "10.3.0"},
        "its plans leave the lean runtime of tensorrt 10.3.0 out (builder.exclude_lean_runtime), and without it "
        "tensorrt_dispatch 10.3.0 does not run them",
        "pip install 'tensorrt==10.3.0', or pip install 'tensorrt-lean==10.3.0', or build the package without "
        "exclude_lean_runtime",
    ),
    "a plan without the lean runtime, and nothing": (
        WITHOUT_LEAN,
        {},
        "it needs tensorrt 10.3.0, which is not installed",
        "pip install 'tensorrt==10.3.0', or pip install 'tensorrt-lean==10.3.0'",
    ),
    "TensorRT-RTX has no small runtimes": (
        replace(RTX, version_compatible=True, exclude_lean_runtime=True),
        {"lean": "10.16.1.11"},
        "it needs tensorrt-rtx 1.7.1.116, which is not installed",
        "pip install 'tensorrt-rtx==1.7.1.116'",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_the_problem_names_what_is_installed_and_what_to_install(case: str) -> None:
    target, versions, reason, hint = PROBLEMS[case]
    assert chosen(target, **versions) is None
    assert library_problem(target, installed(**versions)) == (reason, hint)


def test_an_unknown_toolchain_has_no_library() -> None:
    target: Any = replace(EXACT, toolchain="other")
    assert choose_library(target, installed(full="10.3.0")) is None
    assert library_problem(target, installed(full="10.3.0"))[0] == "it needs other 10.3.0, which is not installed"
