"""Find the weights of a module with all their names, and check whether a ``weights:`` file fits.

Rules
1. Tensors with the same memory, shape and strides are one weight with several names. Its name is the first one in
   ``state_dict`` order (of those in the weights file, if there is a file). The other names are aliases.
2. A weights file must fit as ``load_state_dict(strict=True)`` requires. Its dtypes must fit, too. One name of a tied
   weight is enough. The values of the file are never read here.
3. A module that loads its weights in a special way (a ``load_state_dict`` hook, a ``state_dict`` with more than
   parameters and buffers) is rejected, because its weights cannot be bound by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.job import TraceJob

_LISTED = 8

#: A key that identifies a tensor: (address, dtype, shape, stride), or its object if it has no memory.
Identity = tuple[Any, ...]


@dataclass(frozen=True)
class Weight:
    """A tensor of the module, with all its names. The first one identifies it."""

    names: tuple[str, ...]
    #: The names in `names` that ``state_dict`` contains.
    saved: tuple[str, ...]
    value: torch.Tensor

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def persistent(self) -> bool:
        return bool(self.saved)


def identity(tensor: torch.Tensor) -> Identity:
    """A key that is equal for tensors with the same memory, dtype, shape and strides."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return ("object", id(tensor))
    # the imaginary part of a conjugate shares the memory of its tensor, but has the opposite sign
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_neg())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A weight's values in their stored form: on the CPU, row-major, without a pending sign change."""
    return tensor.detach().cpu().resolve_neg().contiguous()


def refuse_unset(module: torch.nn.Module, job: TraceJob) -> None:
    """Raise SourceError if a parameter or buffer has no plain values. This is so in a lazy module that was never called,
    on the meta device without a weights file, and for a conjugate, which torch.export does not handle."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            problem, hint = (
                "has no shape yet",
                "call the model once before it is returned: a lazy module learns its shapes",
            )
        elif tensor.device.type == "meta" and job.weights is None:
            problem, hint = "is on the meta device, which holds no values", "load the model's weights first"
        elif tensor.is_conj():
            problem, hint = (
                "is the conjugate of another tensor, and is not computed yet",
                "keep tensor.resolve_conj() instead",
            )
        else:
            continue
        raise SourceError(
            f"the weight {name!r} of the model {problem}", code="weights", hint=hint, **job.place("source")
        )


class ModuleWeights:
    """All parameters and buffers of a module; tied names are one weight."""

    def __init__(self, module: torch.nn.Module, in_file: Iterable[str] = ()) -> None:
        known = frozenset(in_file)
        groups: dict[Identity, list[str]] = {}
        values: dict[Identity, torch.Tensor] = {}
        everything = dict(module.named_parameters(remove_duplicate=False))
        everything |= dict(module.named_buffers(remove_duplicate=False))
        saved = [name for name in module.state_dict(keep_vars=True) if name in everything]
        # saved names first, in their order: a weight's name should be one that a file can have
        for name in [*saved, *(name for name in everything if name not in set(saved))]:
            key = identity(everything[name])
            groups.setdefault(key, []).append(name)
            values.setdefault(key, everything[name])
        self.saved_names = tuple(saved)
        self._by_identity: dict[Identity, Weight] = {}
        for key, names in groups.items():
            ordered = sorted(names, key=lambda name: name not in known) if known else names
            self._by_identity[key] = Weight(
                tuple(ordered), tuple(name for name in ordered if name in set(saved)), values[key].detach()
            )
        self._storages = {_storage(value) for value in values.values()}

    def of(self, tensor: torch.Tensor) -> Weight | None:
        """The weight of `tensor`; None if it is not a weight."""
        return self._by_identity.get(identity(tensor))

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is a view of a weight's memory."""
        return tensor.layout is torch.strided and tensor.numel() > 0 and _storage(tensor) in self._storages

    def all(self) -> list[Weight]:
        return list(self._by_identity.values())


def refuse_misfit(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> None:
    """Raise SourceError if the ``weights:`` file's names, dtypes or shapes are not those of the module."""
    if job.weights is None:
        return
    _refuse_own_loading(module, weights, job)
    heads = {name: (dtype, tuple(shape)) for name, dtype, shape in job.weights}
    problems = []
    expected: dict[str, torch.Tensor] = {}
    for weight in weights.all():
        expected |= dict.fromkeys(weight.saved, weight.value)
        if weight.saved and not any(name in heads for name in weight.saved):
            problems.append(f"missing: {weight.saved[0]}{_nearest(weight.saved[0], heads)}")
    for name, (dtype, shape) in heads.items():
        value = expected.get(name)
        if value is None:
            problems.append(f"unexpected: {name}{_nearest(name, expected)}")
        elif tuple(value.shape) != shape:
            problems.append(f"{name}: the file has shape {list(shape)}, the model {list(value.shape)}")
        elif dtype_name(value.dtype) != dtype:
            problems.append(f"{name}: the file has {dtype}, the model {dtype_name(value.dtype)}")
    if problems:
        rest = [f"… and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
        raise SourceError(
            "\n  ".join(["the weights file does not fit the model", *problems[:_LISTED], *rest]),
            code="weights",
            hint="save it as `safetensors.torch.save_model(model, path)` or from `model.state_dict()` of this model",
            **job.place("weights"),
        )


def fill_unset(weights: ModuleWeights) -> None:
    """Fill weights without useful values (zeros, or the NaN of ``torch.empty``) with small random numbers, so that the
    proof compares numbers. Only for a model with ``weights:``, whose file sets these weights later."""
    generator = torch.Generator().manual_seed(0)
    for weight in weights.all():
        value = weight.value
        if not (weight.persistent and value.is_floating_point() and value.numel()):
            continue
        if not bool(torch.isfinite(value).all()) or not bool(value.any()):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.02)


def _refuse_own_loading(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> None:
    extra = [name for name in module.state_dict(keep_vars=True) if name not in set(weights.saved_names)]
    owners = [
        f"{name or 'the model'} ({type(submodule).__name__})"
        for name, submodule in module.named_modules()
        if _has_custom_loading(submodule)
    ]
    if not extra and not owners:
        return
    problem = (
        f"state_dict() has entries that are not parameters or buffers: {', '.join(extra[:_LISTED])}"
        if extra
        else f"these change what they load: {', '.join(owners[:_LISTED])}"
    )
    raise SourceError(
        f"weights: binds a file to the model by name, but {problem}",
        code="weights",
        hint="drop `weights:` and load the file inside the model's own function",
        **job.place("weights"),
    )


def _has_custom_loading(module: torch.nn.Module) -> bool:
    methods = [getattr(type(module), name) for name in ("_load_from_state_dict", "load_state_dict", "state_dict")]
    hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
    hooks += [*module._state_dict_hooks.values()]
    functions = methods + [getattr(hook, "hook", hook) for hook in hooks]
    return any(not (getattr(function, "__module__", None) or "").startswith("torch.") for function in functions)


def _nearest(name: str, others: Mapping[str, object]) -> str:
    matches = difflib.get_close_matches(name, list(others), n=1, cutoff=0.8)
    return f" (nearest: {matches[0]})" if matches else ""


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
