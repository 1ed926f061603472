"""The choice of the target that fits this machine, and of the profile that accepts a call's shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtbuild.core.model.spec import ShapeRange
from trtbuild.core.packages.package_index import PackageIndex, PackedProfile, PackedTarget
from trtbuild.core.partition.partitions import Partitions
from trtbuild.errors import NoFittingTarget
from trtbuild.runtime.packages.choice import Machine, choose_profile, choose_target, out_of_range_text, runs_on_sm

RTX, TRT = {"tensorrt-rtx": "1.7.1.116", "tensorrt": None}, {"tensorrt-rtx": None, "tensorrt": "8.6.0"}


def target(name: str, sm: int, **more: Any) -> PackedTarget:
    plain = PackedTarget(
        name=name,
        sm=sm,
        sms=(sm,),
        toolchain="tensorrt-rtx",
        version="1.7.1.116",
        version_compatible=False,
        compatibility="exact",
        platform="linux-x86_64",
        partitions=Partitions((), ()),
        programs={},
        engines={},
        layers={},
    )
    return replace(plain, **more)


def package(*targets: PackedTarget, has_reference: bool = False) -> PackageIndex:
    return PackageIndex(
        model="vit",
        inputs=(),
        outputs=(),
        output_tree={},
        dims=(),
        profiles=(),
        precision="float32",
        targets={entry.name: entry for entry in targets},
        reference=has_reference,
        weights={},
        files={},
    )


def machine_with(sm: int | None, toolchains: dict[str, str | None] = RTX, platform: str = "linux-x86_64") -> Machine:
    return Machine(platform, sm, "NVIDIA X", toolchains)


PLUS = target("plus", 86, sms=(80, 86, 89, 120), compatibility="ampere_plus")


def test_prefers_the_exact_sm_to_a_portable_plan() -> None:
    index = package(PLUS, target("ada", 89), target("ampere", 86))
    assert choose_target(index, machine_with(89)).name == "ada"
    assert choose_target(index, machine_with(86)).name == "ampere"  # `plus` has this SM, too, but is for more SMs
    assert choose_target(index, machine_with(120)).name == "plus"
    assert choose_target(index, machine_with(86), "plus").name == "plus"


def test_a_tensorrt_plan_for_ampere_plus_fits_every_later_sm() -> None:
    plus = target("plus", 80, toolchain="tensorrt", compatibility="ampere_plus")
    assert [runs_on_sm(plus, sm) for sm in (75, 80, 90, 120)] == [False, True, True, True]
    assert not runs_on_sm(replace(plus, toolchain="tensorrt-rtx"), 90)


def test_chooses_a_target_of_the_installed_toolchain() -> None:
    index = package(target("a", 90), target("b", 90, toolchain="tensorrt", version="8.6.0"))
    assert choose_target(index, machine_with(90, TRT)).name == "b"
    assert choose_target(index, machine_with(90, RTX)).name == "a"


MISFITS = {
    "another GPU": ((target("ada", 89),), machine_with(90), "ada: it is for SM 89", "add a target with sm: 90"),
    "another version": (
        (target("ada", 89, version="1.4.0.76"),),
        machine_with(89),
        "ada: it was built by tensorrt-rtx 1.4.0.76, but 1.7.1.116 is installed",
        "pip install 'tensorrt-rtx==1.4.0.76', or build the package with 1.7.1.116",
    ),
    "nothing installed": (
        (target("ada", 89),),
        machine_with(89, TRT),
        "ada: it needs tensorrt-rtx 1.7.1.116, which is not installed",
        "pip install 'tensorrt-rtx==1.7.1.116'",
    ),
    "another platform": (
        (target("ada", 89, platform="windows-x86_64"),),
        machine_with(89),
        "ada: it is for windows-x86_64",
        "platform: linux-x86_64",
    ),
    "a reason for each target": (
        (target("ada", 89), target("hopper", 90, version="1.4.0.76")),
        machine_with(90),
        "ada: it is for SM 89\n    hopper: it was built by tensorrt-rtx 1.4.0.76",
        "; or ",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_the_error_says_why_no_target_fits(case: str) -> None:
    targets, machine, text, hint = MISFITS[case]
    with pytest.raises(NoFittingTarget) as raised:
        choose_target(package(*targets), machine)
    assert "(NVIDIA X, SM" in str(raised.value) and text in str(raised.value)
    assert hint in str(raised.value.hint)


def test_a_plan_without_lean_runtime_needs_its_exact_version() -> None:
    old = target(
        "hopper", 90, toolchain="tensorrt", version="8.6.0", version_compatible=True, exclude_lean_runtime=True
    )
    assert choose_target(package(old), machine_with(90, {"tensorrt": "8.6.0"})) is old
    with pytest.raises(NoFittingTarget, match=r"leave the lean runtime of tensorrt 8\.6\.0 out \(builder") as raised:
        choose_target(package(old), machine_with(90, {"tensorrt": "10.3.0"}))
    assert "or build the package without exclude_lean_runtime" in str(raised.value.hint)


def test_a_version_compatible_plan_runs_on_later_versions() -> None:
    old = target("hopper", 90, toolchain="tensorrt", version="8.6.0", version_compatible=True)
    assert choose_target(package(old), machine_with(90, {"tensorrt": "10.3.0"})).name == "hopper"
    with pytest.raises(NoFittingTarget):
        choose_target(package(old), machine_with(90, {"tensorrt": "8.5.3"}))


def test_a_requested_target_must_exist_and_fit() -> None:
    with pytest.raises(NoFittingTarget, match="has no target 'adda'") as raised:
        choose_target(package(target("ada", 89)), machine_with(89), "adda")
    assert "did you mean 'ada'" in str(raised.value.hint)
    with pytest.raises(NoFittingTarget, match="target 'ada' does not fit"):
        choose_target(package(target("ada", 89), target("hopper", 90)), machine_with(90), "ada")


def test_without_a_gpu_the_hint_names_the_cpu() -> None:
    with pytest.raises(NoFittingTarget, match=r"no GPU was found.*ada \(SM 89") as raised:
        choose_target(package(target("ada", 89), has_reference=True), machine_with(None))
    assert 'device="cpu"' in str(raised.value.hint)
    with pytest.raises(NoFittingTarget) as raised:
        choose_target(package(target("ada", 89)), machine_with(None))
    assert "reference: true" in str(raised.value.hint)


# -- profiles


def profile(name: str, low: int, mid: int, high: int) -> PackedProfile:
    return PackedProfile(name, (ShapeRange((low, 3), (mid, 3), (high, 3)),))


SMALL, LARGE = profile("small", 1, 2, 8), profile("large", 4, 32, 64)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 0), (4, 0), (8, 0), (9, 1), (64, 1), (65, None), (0, None)],
)
def test_chooses_the_profile_with_the_nearest_opt(size: int, expected: int | None) -> None:
    assert choose_profile([SMALL, LARGE], [(size, 3)]) == expected


def test_compares_distances_to_opt_as_ratios() -> None:
    """In the first case, 8 / 2 equals 32 / 8, so both profiles are equally near, and the first one is chosen."""
    assert choose_profile([profile("a", 1, 2, 64), profile("b", 1, 32, 64)], [(8, 3)]) == 0
    assert choose_profile([profile("a", 1, 2, 64), profile("b", 1, 31, 64)], [(8, 3)]) == 1
    assert choose_profile([profile("a", 1, 4, 64), profile("b", 1, 13, 64)], [(8, 3)]) == 1


def test_the_message_about_a_size_out_of_range_names_every_profile() -> None:
    def axis(number: int, index: int) -> str:
        return f"input {number}, axis {index}"

    assert out_of_range_text([SMALL], [(9, 3)], axis) == "input 0, axis 0 is 9, and allowed is 1 to 8"
    assert out_of_range_text([SMALL, LARGE], [(65, 4)], axis).splitlines() == [
        "no profile takes these shapes",
        "    small: input 0, axis 0 is 65, and allowed is 1 to 8; input 0, axis 1 is 4, and allowed is 3 alone",
        "    large: input 0, axis 0 is 65, and allowed is 4 to 64; input 0, axis 1 is 4, and allowed is 3 alone",
    ]
