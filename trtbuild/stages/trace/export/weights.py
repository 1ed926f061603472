"""Find the weights of a module with all their names, and check whether a ``weights:`` file fits the module.

Rules
1. Tensors with the same memory, dtype, shape, strides and sign (`Identity`) are one weight with several names (a tied
   weight). The first name in the order of ``state_dict`` identifies the weight. With a weights file, it is the first name
   that the file contains. The other names are aliases.
2. A weights file must fit as ``load_state_dict(strict=True)`` requires, and its dtypes must be those of the module. It
   needs only one name of a tied weight. The values of the file are never read here.
3. With a weights file, a module that loads its weights in a special way is rejected, because its weights cannot be bound by
   name. Such a module has a hook or its own method for ``load_state_dict`` or ``state_dict``, or its ``state_dict``
   contains more than parameters and buffers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trtbuild.errors import SourceError
from trtbuild.stages.trace.examples import dtype_name
from trtbuild.stages.trace.job import TraceJob

#: A message lists at most this many names.
_MAX_LISTED = 8

#: Weights are examined in pieces of this many elements.
_PIECE_ELEMENTS = 1 << 24

#: A key that identifies a tensor: (address, dtype, shape, stride, ``is_neg()``: whether torch negates the values that are
#: read). For a tensor without elements or strides: ("object", its id).
Identity = tuple[Any, ...]


@dataclass(frozen=True)
class Weight:
    """A tensor of the module, with all its names. The first name identifies it."""

    names: tuple[str, ...]
    #: The names in `names` that ``state_dict`` contains.
    saved_names: tuple[str, ...]
    value: torch.Tensor

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def persistent(self) -> bool:
        return bool(self.saved_names)


def identity(tensor: torch.Tensor) -> Identity:
    """A key that is equal for tensors with the same memory, dtype, shape, strides and sign."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return ("object", id(tensor))
    # ``x.conj().imag`` has the memory of ``x.imag``, but the opposite sign
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_neg())


def stored_form(tensor: torch.Tensor) -> torch.Tensor:
    """A weight's values as they are stored: on the CPU, row-major, with their sign (`Identity`) applied."""
    return tensor.detach().cpu().resolve_neg().contiguous()


def refuse_unset_weights(module: torch.nn.Module, job: TraceJob) -> None:
    """Raise SourceError for a parameter or buffer without values: in a lazy module that was never called, or on the meta
    device. Also raise it for a view such as ``tensor.conj()``, because torch.export rejects it. And raise it for a tensor
    that consists of other tensors, because such a tensor has no memory."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            problem, hint = (
                "has no shape yet",
                "call the model once before it is returned: a lazy module learns its shapes",
            )
        elif tensor.device.type == "meta":
            problem, hint = "is on the meta device, which holds no values", "load the model's weights first"
            if job.weights is not None:  # the file cannot set all values: it has no non-persistent buffers
                hint = "create the model on the CPU, with any values: `weights:` replaces those that its file contains"
        elif tensor.is_conj():
            problem, hint = (
                "is the conjugate of another tensor, and is not computed yet",
                "keep tensor.resolve_conj() instead",
            )
        elif is_traceable_wrapper_subclass(tensor):
            problem, hint = (
                f"is a {type(tensor).__name__}, which consists of other tensors",
                "call torchao.utils.unwrap_tensor_subclass(model) before the model is returned",
            )
        else:
            continue
        raise SourceError(
            f"the weight {name!r} of the model {problem}", code="weights", hint=hint, **job.place("source")
        )


class ModuleWeights:
    """All parameters and buffers of a module, each tied weight once (rule 1). `names_in_file` are the names of the tensors
    in the weights file."""

    def __init__(self, module: torch.nn.Module, names_in_file: Iterable[str] = ()) -> None:
        file_names = frozenset(names_in_file)
        groups: dict[Identity, list[str]] = {}
        values: dict[Identity, torch.Tensor] = {}
        tensors = dict(module.named_parameters(remove_duplicate=False))
        tensors |= dict(module.named_buffers(remove_duplicate=False))
        saved_names = [name for name in module.state_dict(keep_vars=True) if name in tensors]
        # the names in state_dict come first: a weight should have a name that a weights file can contain
        for name in [*saved_names, *(name for name in tensors if name not in set(saved_names))]:
            key = identity(tensors[name])
            groups.setdefault(key, []).append(name)
            values.setdefault(key, tensors[name])
        self.saved_names = tuple(saved_names)
        self._by_identity: dict[Identity, Weight] = {}
        for key, names in groups.items():
            ordered = sorted(names, key=lambda name: name not in file_names) if file_names else names
            self._by_identity[key] = Weight(
                tuple(ordered), tuple(name for name in ordered if name in set(saved_names)), values[key].detach()
            )
        self._saved_storages = {_storage_address(w.value) for w in self._by_identity.values() if w.persistent}

    def find(self, tensor: torch.Tensor) -> Weight | None:
        """The weight of `tensor`; None if it is not a weight."""
        return self._by_identity.get(identity(tensor))

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is a view of the memory of a weight that ``state_dict`` contains."""
        return (
            tensor.layout is torch.strided and tensor.numel() > 0 and _storage_address(tensor) in self._saved_storages
        )

    def all(self) -> list[Weight]:
        return list(self._by_identity.values())


def refuse_unfit_weights_file(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> None:
    """Raise SourceError if the ``weights:`` file does not fit the module (rule 2), or if rule 3 rejects the module."""
    if job.weights is None:
        return
    _refuse_custom_loading(module, weights, job)
    headers = {name: (dtype, tuple(shape)) for name, dtype, shape in job.weights}
    problems = []
    expected: dict[str, torch.Tensor] = {}
    for weight in weights.all():
        expected |= dict.fromkeys(weight.saved_names, weight.value)
        if weight.saved_names and not any(name in headers for name in weight.saved_names):
            problems.append(f"missing: {weight.saved_names[0]}{_nearest_hint(weight.saved_names[0], headers)}")
    for name, (dtype, shape) in headers.items():
        value = expected.get(name)
        if value is None:
            problems.append(f"unexpected: {name}{_nearest_hint(name, expected)}")
        elif tuple(value.shape) != shape:
            problems.append(f"{name}: the file has shape {list(shape)}, the model {list(value.shape)}")
        elif dtype_name(value.dtype) != dtype:
            problems.append(f"{name}: the file has {dtype}, the model {dtype_name(value.dtype)}")
    if problems:
        rest = [f"… and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        raise SourceError(
            "\n  ".join(["the weights file does not fit the model", *problems[:_MAX_LISTED], *rest]),
            code="weights",
            hint="save it as `safetensors.torch.save_model(model, path)` or from `model.state_dict()` of this model",
            **job.place("weights"),
        )


def fill_unset_weights(weights: ModuleWeights, state: Sequence[str] = ()) -> None:
    """Write small random numbers to weights without useful values, so that `stages.trace.proof` has numbers to compare.

    All values of such a weight are 0, or some are infinite or NaN (as ``torch.empty`` leaves them). Call this only for a
    model with ``weights:``, because the file then replaces the random numbers.

    A buffer that a pattern of `state` names keeps its zeros: comparisons draw its values, and a negative number here would
    say that it may be negative (`trtbuild.stages.trace.export.state`, rule 5).
    """
    generator = torch.Generator().manual_seed(0)
    for weight in weights.all():
        value = weight.value
        if any(fnmatchcase(weight.name, pattern) for pattern in state) and not bool(value.any()):
            continue
        if weight.persistent and value.is_floating_point() and value.numel() and not _has_useful_values(value):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.02)


def _has_useful_values(value: torch.Tensor) -> bool:
    """Whether all values are finite, and not all are 0."""
    # in pieces, because isfinite makes a tensor with as many elements as its input
    pieces = value.reshape(-1).split(_PIECE_ELEMENTS) if value.is_contiguous() else (value,)
    if value.itemsize == 1:  # float8, for which torch has neither sums nor isfinite
        pieces = [piece.float() for piece in pieces]
    sums = [float(piece.sum()) for piece in pieces]
    if any(sums) and all(map(math.isfinite, sums)):
        return True  # nearly every weight; sums are ten times as fast as isfinite
    return all(bool(torch.isfinite(piece).all()) for piece in pieces) and any(bool(piece.any()) for piece in pieces)


def _refuse_custom_loading(module: torch.nn.Module, weights: ModuleWeights, job: TraceJob) -> None:
    extra_names = [name for name in module.state_dict(keep_vars=True) if name not in set(weights.saved_names)]
    custom_modules = [
        f"{name or 'the model'} ({type(submodule).__name__})"
        for name, submodule in module.named_modules()
        if _has_custom_loading(submodule)
    ]
    if not extra_names and not custom_modules:
        return
    problem = (
        f"state_dict() has entries that are not parameters or buffers: {', '.join(extra_names[:_MAX_LISTED])}"
        if extra_names
        else f"these change what they load or save: {', '.join(custom_modules[:_MAX_LISTED])}"
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


def _nearest_hint(name: str, others: Mapping[str, object]) -> str:
    matches = difflib.get_close_matches(name, list(others), n=1, cutoff=0.8)
    return f" (nearest: {matches[0]})" if matches else ""


def _storage_address(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
