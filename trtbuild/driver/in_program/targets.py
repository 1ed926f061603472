"""The target that `trtbuild.compile` builds for: its argument `target`, or the GPU that the result runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import Compatibility, Target, ToolchainName
from trtbuild.driver.packages.machine import gpu_number
from trtbuild.errors import EnvironmentFault, NoFittingTarget, UsageError
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.devices import device_sms

#: Field of a target → the argument that sets it, if the argument has another name.
_ARGUMENT_NAMES = {"version": "toolchain_version", "compatibility": "compatibility (or hardware_compatible)"}

_SM_PATTERN = re.compile(r"^(?:sm_?)?(\d{2,3})$|^(\d{1,2})\.(\d)$", re.IGNORECASE)


def target_of(
    target: Any,
    *,
    device: Any = None,
    toolchain: str | None = None,
    version: str | None = None,
    compatibility: str | None = None,
) -> Target:
    """Return the target to build for.

    `target` is an SM, the number of a GPU architecture (``89``, ``"sm_89"``, ``"8.9"``). It may also be a mapping as in a
    manifest (``{"sm": 89}``), or a `Target`. None means the GPU of `device`, or the current GPU if `device` is None.

    `toolchain`, `version` and `compatibility` complete an SM or a mapping. They must not contradict `target`.

    Raises UsageError, and EnvironmentFault if `target` is None and `device` is not a GPU of this machine.
    """
    arguments = {
        "toolchain": None if toolchain is None else _checked_toolchain(toolchain),
        "version": version,
        "compatibility": None if compatibility is None else _checked_compatibility(compatibility),
    }
    if isinstance(target, Target):
        _refuse_contradiction({name: getattr(target, name) for name in arguments}, arguments)
        return target
    if isinstance(target, Mapping):
        _refuse_contradiction(target, arguments)
        return _target_from_mapping(
            {**{name: value for name, value in arguments.items() if value is not None}, **target}, target
        )
    sm = _sm_of_device(device) if target is None else _parse_sm(target)
    resolved = Target(f"sm{sm}", sm, _toolchain_for(sm, toolchain), version, platform=table.host_platform())
    return resolved if compatibility is None else replace(resolved, compatibility=_checked_compatibility(compatibility))


def _refuse_contradiction(target_fields: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise UsageError if an argument that is not None differs from the target's field with the same name."""
    for name, value in arguments.items():
        if value is not None and name in target_fields and target_fields[name] != value:
            argument = _ARGUMENT_NAMES.get(name, name)
            raise UsageError(
                f"target has the {name} {target_fields[name]!r}, and {argument} is {value!r}",
                hint=f"give the {name} once: leave {argument} out, or change the target",
            )


def ensure_gpu(target: Target, name: str) -> None:
    """Raise NoFittingTarget if this machine has no GPU. `name` is the name of the model."""
    if not device_sms():
        raise NoFittingTarget(
            f"no GPU was found, and the engines of {name!r} need one: {target.name} (SM {target.sm}, {target.toolchain})",
            hint='compile it with device="cpu", which runs it without any engine',
        )


def _parse_sm(target: Any) -> int:
    match = None if isinstance(target, bool) else _SM_PATTERN.match(str(target))
    if match is None:
        raise UsageError(
            f"{target!r} is not a target", hint='write an SM, such as 89 or "sm_89", or a mapping such as {"sm": 89}'
        )
    return int(match[1]) if match[1] else int(match[2]) * 10 + int(match[3])


def _target_from_mapping(mapping: Mapping[str, Any], target_argument: Mapping[str, Any]) -> Target:
    """Return the target of `mapping`. Errors show `target_argument`, the mapping that the program passed."""
    from pydantic import ValidationError

    from trtbuild.manifest.format.fields import TargetFields

    without_name = {name: value for name, value in mapping.items() if name != "name"}
    try:
        fields = TargetFields(**without_name)
    except ValidationError as error:
        raise _target_error(target_argument, error.errors(include_url=False)[0], TargetFields) from None
    return Target(
        str(mapping.get("name", f"sm{fields.sm}")),
        fields.sm,
        _toolchain_for(fields.sm, fields.toolchain),
        fields.version,
        fields.compatibility,
        fields.platform or table.host_platform(),
    )


def _target_error(mapping: Mapping[str, Any], details: Any, fields_type: Any) -> UsageError:
    """Convert `details`, one of pydantic's errors, to a UsageError."""
    from trtbuild.manifest.format.wording import ExpectedType, allowed_text

    hint = 'such as target={"sm": 89, "toolchain": "tensorrt-rtx", "compatibility": "exact"}'
    name = str(details["loc"][0]) if details["loc"] else ""
    if details["type"] == "trtbuild":
        text = details["ctx"]["text"].replace("`", "")
    elif details["type"] == "extra_forbidden":
        text = f"there is no {name!r}"
    elif details["type"] == "missing":
        text = f"{name!r} is missing"
    else:
        expected = ExpectedType(fields_type).type_inside(name) or ExpectedType(fields_type)
        text = f"{name!r} must be {allowed_text(expected)}, not {details['input']!r}"
    return UsageError(f"target {dict(mapping)!r}: {text}", hint=hint)


def _checked_compatibility(value: str) -> Compatibility:
    known: tuple[Compatibility, ...] = ("exact", "same_compute_capability", "ampere_plus")
    for name in known:
        if value == name:
            return name
    raise UsageError(f"{value!r} is not a compatibility", hint=f"there are: {', '.join(known)}")


def _toolchain_for(sm: int, requested: str | None) -> ToolchainName:
    """Return the `requested` toolchain. The default is the first installed one that builds for `sm`, or TensorRT-RTX."""
    if requested is not None:
        return _checked_toolchain(requested)
    for name, flavour in table.FLAVOURS.items():
        if table.installed_version(name) is not None and (flavour.sms is None or sm in flavour.sms):
            return name
    return "tensorrt-rtx"


def _checked_toolchain(requested: str) -> ToolchainName:
    for name in table.FLAVOURS:
        if requested == name:
            return name
    raise UsageError(f"{requested!r} is not a toolchain", hint=f"there are: {', '.join(table.FLAVOURS)}")


def _sm_of_device(device: Any) -> int:
    """Return the SM of the GPU `device`: ``"cuda:1"``, 1, or None for the current GPU. Raises EnvironmentFault."""
    sms = device_sms()
    ordinal = gpu_number(device)
    if not sms or ordinal is None:
        reason = "this machine has no GPU" if not sms else f"the model is to run on {device}"
        raise EnvironmentFault(
            f"no target is given, and {reason}: the GPU to build for is not known",
            hint='give a target, such as target=89; with device="cpu" the result runs here, without its engines',
        )
    if ordinal >= len(sms):
        raise EnvironmentFault(f"there is no device {device}", hint=f"this machine has {len(sms)} GPUs")
    return sms[ordinal]
