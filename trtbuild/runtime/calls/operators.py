"""The operator ``trtbuild::engine``, which a ``.pt2`` file calls for each engine of the model.

    engine(Tensor[] inputs, Tensor[] weights, Tensor plan, Tensor reference, SymInt[] sizes, str about) -> Tensor[]

Rules
1. `plan` is the engine's plan (its serialized form), and `reference` is its reference program, both as uint8 tensors. A
   `reference` with a single 0 means that there is no program. `weights` are the weights of the reference program: the plan
   contains its own. `sizes` has the value of each symbol, the variable that stands for a dynamic dimension. `about` is the
   text of `core.partition.engine_text`.
2. On a GPU the plan runs, on the caller's stream. On the CPU, PyTorch runs the reference program, from which the engine
   was built. Without it, a call on the CPU raises an error.
3. An engine is opened once for each text and device. When it is opened, its bytes must have the digest in the text. The
   file itself must be trusted like any ``.pt2`` file.
4. Under FakeTensor, shapes are computed from the size expressions in the text. So symbolic sizes stay symbolic.
5. The operator does not change its inputs. Its outputs share no memory with its inputs or with one another. It has no
   gradient.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trtbuild.core.packages.package_index import PackedProfile
from trtbuild.core.partition.engine_text import EngineText
from trtbuild.core.values.expressions import Expression
from trtbuild.errors import CallRefused, NoFittingTarget, PackageDamaged
from trtbuild.runtime.calls.call import Call
from trtbuild.runtime.calls.stitching import Part
from trtbuild.runtime.packages.choice import choose_profile, out_of_range_text

if TYPE_CHECKING:
    import torch

OPERATOR_NAME = "trtbuild::engine"
_SCHEMA = "(Tensor[] inputs, Tensor[] weights, Tensor plan, Tensor reference, SymInt[] sizes, str about) -> Tensor[]"

#: Creates an engine from its text, its plan in host memory, and its device.
Opener = Callable[[EngineText, memoryview, "torch.device"], Part]


@dataclass(frozen=True)
class _OpenEngine:
    """An engine that is ready to run on one device. `profiles` are the ranges of its input shapes."""

    text: EngineText
    part: Part
    profiles: tuple[PackedProfile, ...]


class _Engines:
    """The opened engines of this process, by text and device (rule 3)."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._open: dict[tuple[str, Any], _OpenEngine] = {}
        self._lock = threading.Lock()

    def get(self, about: str, plan: torch.Tensor, device: torch.device) -> _OpenEngine:
        opened = self._open.get((about, device))
        if opened is not None:
            return opened
        with self._lock:
            if (about, device) not in self._open:
                text = parse_text(about)
                data = _verified_bytes(plan, text.plan, f"the plan of engine {text.partition!r}")
                part = self._opener(text, data, device)
                self._open[about, device] = _OpenEngine(text, part, _profiles_of(text))
            return self._open[about, device]


_library: Any = None


def register(opener: Opener) -> None:
    """Register the operator with torch. A second call does nothing."""
    global _library
    if _library is not None:
        return
    import torch

    library = torch.library.Library("trtbuild", "DEF")
    library.define(f"engine{_SCHEMA}", tags=(torch.Tag.needs_exact_strides,) if _has_strides_tag() else ())
    engines = _Engines(opener)

    def engine(
        inputs: list[torch.Tensor],
        weights: list[torch.Tensor],
        plan: torch.Tensor,
        reference: torch.Tensor,
        sizes: list[int],
        about: str,
    ) -> list[torch.Tensor]:
        device = (inputs[0] if inputs else plan).device
        for value in inputs:
            if value.device != device:
                raise CallRefused(
                    f"the engine's inputs are on {device} and {value.device}", hint="move them to one device"
                )
        if device.type == "cpu":
            return _reference_outputs(inputs, weights, reference, sizes, about)
        opened = engines.get(about, plan, device)
        shapes = [tuple(value.shape) for value in inputs]
        profile = choose_profile(opened.profiles, shapes)
        if profile is None:
            raise _out_of_range_error(opened.text, opened.profiles, shapes)
        stream = torch.cuda.current_stream(device).cuda_stream
        contiguous = [value.contiguous() for value in inputs]
        return list(opened.part(contiguous, Call(profile, tuple(sizes), stream, device)))

    library.impl("engine", engine, "CompositeExplicitAutograd")
    torch.library.register_fake(OPERATOR_NAME, _fake_outputs, lib=library)
    _library = library  # torch removes the operator when this object is freed


def _has_strides_tag() -> bool:
    import torch

    return hasattr(torch.Tag, "needs_exact_strides")


@lru_cache(maxsize=4096)
def parse_text(about: str) -> EngineText:
    """Parse the operator's argument `about`. Raises PackageDamaged."""
    try:
        return EngineText.from_text(about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackageDamaged(
            f"the file's text about an engine cannot be used: {error}", hint="write it again, or upgrade trtbuild"
        ) from None


def _profiles_of(text: EngineText) -> tuple[PackedProfile, ...]:
    return tuple(PackedProfile(name, shapes) for name, shapes in zip(text.profile_names, text.profiles, strict=True))


def _out_of_range_error(
    text: EngineText, profiles: Sequence[PackedProfile], shapes: Sequence[tuple[int, ...]]
) -> CallRefused:
    def axis_name(number: int, axis: int) -> str:
        return f"tensor {number} of engine {text.partition!r}, axis {axis}"

    return CallRefused(
        out_of_range_text(profiles, shapes, axis_name), hint="call the model with shapes inside of a profile"
    )


def _verified_bytes(tensor: torch.Tensor, sha256: str, description: str) -> memoryview:
    """Return the bytes of a uint8 tensor. Raises PackageDamaged if their digest is not `sha256`."""
    data = memoryview(tensor.detach().cpu().contiguous().numpy())
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PackageDamaged(f"{description} does not have the digest that is in the file", hint="write the file again")
    return data


# -- on the CPU --


#: The argument `about` → its reference program, which this process has opened.
_reference_graphs: dict[str, Any] = {}


def _reference_outputs(
    inputs: list[torch.Tensor], weights: list[torch.Tensor], reference: torch.Tensor, sizes: list[int], about: str
) -> list[torch.Tensor]:
    """Compute the engine's outputs with its reference program (rule 2)."""
    import torch

    from trtbuild.runtime.calls.torch_part import ProgramGraph, TorchPart

    text = parse_text(about)
    if text.reference is None:
        raise NoFittingTarget(
            f"engine {text.partition!r} of {text.model!r} runs on a GPU (SM {', '.join(map(str, text.sms))}), and its "
            "inputs are on the CPU",
            hint="move the module and its inputs to the GPU; a PyTorch model's file runs here too with `reference: true`",
        )
    profiles, shapes = _profiles_of(text), [tuple(value.shape) for value in inputs]
    if choose_profile(profiles, shapes) is None:
        raise _out_of_range_error(text, profiles, shapes)
    graph = _reference_graphs.get(about)
    if graph is None:
        data = _verified_bytes(reference, text.reference, f"the program of engine {text.partition!r}")
        description = f"the reference of engine {text.partition!r}"
        graph = _reference_graphs[about] = ProgramGraph(data, torch.device("cpu"), description)
    arguments = [*inputs, *weights]
    part = TorchPart(graph, weights, returned_outputs=range(len(text.outputs)))
    outputs = part(inputs, Call(0, tuple(sizes), 0, "cpu"))
    return _copy_shared(list(outputs), arguments)


def _copy_shared(outputs: list[torch.Tensor], arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return contiguous `outputs`, and copy those that share memory with an argument or with another output (rule 5)."""
    used_addresses = {value.untyped_storage().data_ptr() for value in arguments}
    results = []
    for value in outputs:
        address = value.untyped_storage().data_ptr()
        unshared = value.clone() if address in used_addresses else value
        used_addresses.add(unshared.untyped_storage().data_ptr())
        results.append(unshared.contiguous())
    return results


# -- under FakeTensor --


def _fake_outputs(
    inputs: list[torch.Tensor],
    weights: list[torch.Tensor],
    plan: torch.Tensor,
    reference: torch.Tensor,
    sizes: Sequence[int],
    about: str,
) -> list[torch.Tensor]:
    import torch

    text = parse_text(about)
    device = (inputs[0] if inputs else plan).device
    unknown: dict[int, Any] = {}
    return [
        torch.empty(
            [_evaluated_size(size, sizes, unknown) for size in kind.shape],
            dtype=getattr(torch, kind.dtype),
            device=device,
        )
        for kind in text.outputs
    ]


def _evaluated_size(expression: Expression, symbols: Sequence[Any], unknown: dict[int, Any]) -> Any:
    """Evaluate a size expression, as `core.values.expressions.evaluate` does. The values of the symbols may be symbolic.
    `unknown` maps the number of a size that depends on data to its value. A missing size is added."""
    import torch

    if isinstance(expression, int):
        return expression
    operator, *operands = expression
    if operator == "sym":
        return symbols[int(operands[0])]  # type: ignore[arg-type]
    if operator == "data":
        number = int(operands[0])  # type: ignore[arg-type]
        if number not in unknown:
            unknown[number] = torch.library.get_ctx().new_dynamic_size()
        return unknown[number]
    values = [_evaluated_size(operand, symbols, unknown) for operand in operands]
    result = values[0]
    for value in values[1:]:
        result = _apply_operator(str(operator), result, value)
    return result


def _apply_operator(operator: str, left: Any, right: Any) -> Any:
    import torch

    if operator == "add":
        return left + right
    if operator == "mul":
        return left * right
    if operator == "max":
        return torch.sym_max(left, right)
    if operator == "min":
        return torch.sym_min(left, right)
    if operator == "floordiv":
        return left // right
    if operator == "ceildiv":
        return -(-left // right)
    if operator == "mod":
        return left % right
    if operator == "pow":
        return left**right
    raise ValueError(f"no operator {operator!r}")
