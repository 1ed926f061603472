"""Decide whether Triton's TensorRT backend and ensembles can serve a package.

Rules (with their place in triton-inference-server's sources)
1. The backend `tensorrt` links one version of TensorRT, and accepts only plans of that library, not of TensorRT-RTX.
2. The backend chooses a plan only by compute capability (`cc_model_filenames`). So it cannot distinguish two targets with
   the same SM, or targets of two platforms.
3. An ensemble's tensors come from requests and from steps. So an output of the model cannot be one of its inputs, a weight,
   or a second name of another output. Every step needs an input (ensemble_utils.cc).
4. Bindings have the dtypes of the plan. They equal the partition's dtypes only if this TensorRT has the type.
5. The backend computes the sizes of outputs from input shapes.
6. The backend's configuration check reads axis 0 of tensors, so one tensor of a plan must have an axis (model_state.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtbuild.core.values.expressions import depends_on_data
from trtbuild.toolchain.libraries.releases import release

Index = Mapping[str, Any]


def why_not_native(index: Index) -> str | None:
    """Return the reason why Triton cannot serve the engines itself; None if it can."""
    return next(_reasons(index), None)


def _reasons(index: Index) -> Iterator[str]:
    targets: Mapping[str, Any] = index["targets"]
    for name, target in targets.items():
        if target["toolchain"] != "tensorrt":
            yield f"target {name} is built by {target['toolchain']}, whose plans Triton's TensorRT backend does not take"
    for field, what in (("version", "TensorRT"), ("platform", "the platform")):
        found = sorted({str(target[field]) for target in targets.values()})
        if len(found) > 1:
            yield f"its targets are for {what} {' and '.join(found)}, and a server has one"
    yield from _of_files(targets)
    cuts = [_cut(target) for target in targets.values()]
    if any(cut != cuts[0] for cut in cuts):
        yield "its targets are cut into different partitions"
    for target in targets.values():
        yield from _of_partitions(index, target)


def _of_files(targets: Mapping[str, Any]) -> Iterator[str]:
    """Yield the targets that the backend cannot distinguish (rule 2)."""
    owners: dict[object, str] = {}
    for name, target in targets.items():
        for sm in serves(target):
            other = owners.setdefault(sm, name)
            if other != name:
                what = f"SM {sm}" if isinstance(sm, int) else "every later GPU"
                yield f"targets {other} and {name} are both for {what}"


def serves(target: Mapping[str, Any]) -> list[int | str]:
    """Return the SMs of a target's plans; ``["default"]`` for a plan that also runs on other GPUs."""
    return ["default"] if target["compatibility"] == "ampere_plus" else list(target.get("sms") or [target["sm"]])


def _cut(target: Mapping[str, Any]) -> object:
    cut = target["partitions"]
    parts = [(part["name"], part["inputs"], part["outputs"]) for part in cut["partitions"]]
    return parts, cut["outputs"]


def _of_partitions(index: Index, target: Mapping[str, Any]) -> Iterator[str]:
    cut = target["partitions"]
    known = release("tensorrt", str(target["version"])).dtypes
    used: set[str] = set()
    for part in cut["partitions"]:
        name = part["name"]
        if part["kind"] != "tensorrt":
            yield f"partition {name} runs in PyTorch"
        used.update(source for source, _ in part["inputs"])
        if not part["inputs"] or any(source.startswith("weight:") for source, _ in part["inputs"]):
            yield f"partition {name} has inputs that are not the model's"
        tensors = [*(type_ for _, type_ in part["inputs"]), *part["outputs"]]
        for type_ in tensors:
            if type_["dtype"] not in known:
                yield f"partition {name} takes or gives {type_['dtype']}, which TensorRT {target['version']} has not"
        if not any(type_["shape"] for type_ in tensors):
            yield f"partition {name} has scalars only"
        if any(depends_on_data(size) for type_ in part["outputs"] for size in type_["shape"]):
            yield f"partition {name} has an output whose size only running it tells"
    if not cut["partitions"]:
        yield "it has no engine"
    outputs = list(cut["outputs"])
    if len(set(outputs)) < len(outputs) or any(source.startswith(("input:", "weight:")) for source in outputs):
        yield "one of its outputs is an input, a weight or another output"
    if any(f"input:{number}" not in used for number in range(len(index["inputs"]))):
        yield "one of its inputs is not used"
