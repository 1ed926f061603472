"""Choose the target of a package for this machine, and the profile for a call. The functions of this module are pure.

Rules
1. A target fits if its platform is this machine's, its plans (serialized engines) are for this GPU, and a library that runs
   the plans is installed (`trtbuild.core.packages.engine_libraries`). If no target fits a machine with a GPU, the error
   has a reason for each target.
2. Plans run on the GPU architectures in `PackedTarget.sms` (89 is NVIDIA's compute capability 8.9). With TensorRT's
   ``ampere_plus`` they run on every SM from 80 on (``HardwareCompatibilityLevel.AMPERE_PLUS``).
3. If several targets fit, a target whose `sm` is this GPU's is preferred, then the target for the fewest SMs, then the
   first.
4. A profile fits a call if every size of every input is in its range. If several profiles fit, the one with the nearest opt
   is chosen, then the first. The nearest opt has the smallest sum over all axes of |ln(size / opt)|, so ratios count, not
   differences. An axis adds nothing to the sum if its size or its opt is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtbuild.core.packages.engine_libraries import choose_library, library_problem
from trtbuild.core.packages.package_index import PackageIndex, PackedProfile, PackedTarget
from trtbuild.core.values.nearest import suggestion
from trtbuild.errors import NoFittingTarget

#: The lowest SM of ``ampere_plus``.
_AMPERE_SM = 80


@dataclass(frozen=True)
class Machine:
    """This machine. Without a GPU, `sm` is None. `libraries` maps a library that runs engines
    (`engine_libraries.LibraryName`) to its version, or to None if the library is not installed."""

    platform: str
    sm: int | None
    gpu: str
    libraries: Mapping[str, str | None]


def choose_target(index: PackageIndex, machine: Machine, name: str | None = None) -> PackedTarget:
    """Choose the target that runs on `machine`. With `name`, only this target may be chosen. Raises NoFittingTarget."""
    if name is not None and name not in index.targets:
        raise NoFittingTarget(
            f"the package of {index.model!r} has no target {name!r}", hint=suggestion(name, index.targets, "targets")
        )
    if machine.sm is None:
        raise NoFittingTarget(
            f"no GPU was found, but the engines of {index.model!r} need a GPU: {_target_list(index.targets.values())}",
            hint=_cpu_hint(index),
        )
    fitting: list[PackedTarget] = []
    lines, hints = "", []
    for target in index.targets.values() if name is None else (index.targets[name],):
        misfit = _misfit_reason(target, machine)
        if misfit is None:
            fitting.append(target)
            continue
        reason, hint = misfit
        lines += f"\n    {target.name}: {reason}"
        if hint not in hints:
            hints.append(hint)
    if not fitting:
        summary = f"target {name!r} does not fit" if name is not None else "no target fits"
        raise NoFittingTarget(
            f"the package of {index.model!r} was not built for this machine ({machine.gpu}, SM {machine.sm}, "
            f"{machine.platform}): {summary}{lines}",
            hint="; or ".join(hints[:2]),
        )
    return min(fitting, key=lambda target: (target.sm != machine.sm, len(target.sms)))  # rule 3; min returns the first


def runs_on_sm(target: PackedTarget, sm: int) -> bool:
    """Whether the plans of `target` run on a GPU of the architecture `sm` (rule 2)."""
    if target.toolchain == "tensorrt" and target.compatibility == "ampere_plus":
        return sm >= _AMPERE_SM
    return sm in target.sms


def _misfit_reason(target: PackedTarget, machine: Machine) -> tuple[str, str] | None:
    """Return (reason, hint) if a target does not fit, otherwise None."""
    if target.platform != machine.platform:
        return f"it is for {target.platform}", f"build the package for a target with platform: {machine.platform}"
    if machine.sm is not None and not runs_on_sm(target, machine.sm):
        listed = ", ".join(map(str, target.sms))
        return f"it is for SM {listed}", f"add a target with sm: {machine.sm} to the manifest and build"
    if choose_library(target, machine.libraries) is None:
        return library_problem(target, machine.libraries)
    return None


def _target_list(targets: Iterable[PackedTarget]) -> str:
    return ", ".join(f"{target.name} (SM {target.sm}, {target.toolchain} {target.version})" for target in targets)


def _cpu_hint(index: PackageIndex) -> str:
    library = index.reference_library
    if index.target_without_engines is not None and not index.reference:
        return f'pass device="cpu": {library} computes all of it'
    if index.reference:
        return f'pass device="cpu" to run the reference program, which {library} computes without any engine'
    return no_reference_hint()


#: A hint that says how to add a reference program to a package.
ADD_REFERENCE_HINT = "set `reference: true` in the manifest and build again (a TensorRT network has no such program)"


def no_reference_hint() -> str:
    """Return the hint for a package that should run on the CPU, but has no reference program."""
    return f'{ADD_REFERENCE_HINT}; then device="cpu" runs it without any engine'


def choose_profile(profiles: Sequence[PackedProfile], shapes: Sequence[Sequence[int]]) -> int | None:
    """Return the number of the profile for inputs of `shapes`, or None if no profile fits (rule 4). The caller has checked
    the ranks."""
    nearest: int | None = None
    smallest_distance = math.inf
    for number, profile in enumerate(profiles):
        distance = _distance(profile, shapes)
        if distance is not None and distance < smallest_distance:
            nearest, smallest_distance = number, distance
    return nearest


def _distance(profile: PackedProfile, shapes: Sequence[Sequence[int]]) -> float | None:
    """Return the distance of `shapes` from the profile's opt (rule 4), or None if the profile does not fit."""
    distance = 0.0
    for ranges, shape in zip(profile.shapes, shapes, strict=True):
        for low, opt, high, size in zip(ranges.min, ranges.opt, ranges.max, shape, strict=True):
            if not low <= size <= high:
                return None
            if size != opt and size and opt:
                distance += abs(math.log(size / opt))
    return distance


#: Names an axis for a message: (input number, axis) → text.
AxisName = Callable[[int, int], str]


def out_of_range_text(profiles: Sequence[PackedProfile], shapes: Sequence[Sequence[int]], axis_name: AxisName) -> str:
    """Return the message for `shapes` that no profile fits, with the wrong and the allowed sizes of each profile."""
    texts = []  # one for each profile
    for profile in profiles:
        problems = []
        for number, (ranges, shape) in enumerate(zip(profile.shapes, shapes, strict=True)):
            for axis, (low, high, size) in enumerate(zip(ranges.min, ranges.max, shape, strict=True)):
                if not low <= size <= high:
                    allowed = f"{low} to {high}" if low != high else f"{low} alone"
                    problems.append(f"{axis_name(number, axis)} is {size}, and allowed is {allowed}")
        texts.append("; ".join(problems))
    if len(texts) == 1:
        return texts[0]
    lines = (f"\n    {profile.name}: {text}" for profile, text in zip(profiles, texts, strict=True))
    return "no profile takes these shapes" + "".join(lines)
