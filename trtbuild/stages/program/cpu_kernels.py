"""Give a substitute kernel to each custom operator that has no kernel for the CPU.

Without a kernel, a model with such an operator cannot run on the CPU. A substitute returns values that depend on the
arguments of the call. So two programs usually have different results if they call the operator with different arguments, or
in different places. A comparison of the programs covers the calls of the operator, but not the operator's own results.

Rules
1. The dtypes and sizes of a result are those of the operator's fake implementation. A size that depends on data is 2.
2. A floating-point or complex result consists of pseudo-random numbers. They depend on the operator, on the sizes of its
   tensor arguments, and on its other arguments. They are multiplied by a factor near 1 that depends on every element of the
   tensors. If elements change little, the factor changes little. So results stay similar if libraries round differently.
3. Integers and bools are 0, because such results are often indices.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from trtbuild.stages.program.custom_operators import has_cpu_kernel

_UNKNOWN_SIZE = 2  # rule 1


@contextlib.contextmanager
def substitute_kernels(operators: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Inside the block, give a substitute to each of `operators` that has no kernel for the CPU. Yields the names of the
    operators with a substitute, such as ``mylib.twist.default``."""
    libraries, names = [], []
    try:
        for name in operators:
            namespace, operator, overload = name.split(".")
            if not has_cpu_kernel(name):
                target = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
                library = torch.library.Library(namespace, "IMPL")
                libraries.append(library)
                library.impl(operator if overload == "default" else f"{operator}.{overload}", _kernel(target), "CPU")
                names.append(name)
        yield tuple(names)
    finally:
        for library in libraries:
            library._destroy()


def _kernel(target: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fake_args, fake_kwargs = pytree.tree_map_only(
            torch.Tensor, lambda tensor: mode.from_tensor(tensor, static_shapes=True), (args, kwargs)
        )
        with mode:
            fake_results = target(*fake_args, **fake_kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        others = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if not isinstance(leaf, torch.Tensor)]
        generator = _generator(str(target), repr(others))
        factor = 1 + 0.1 * math.tanh(sum(_feature(tensor, generator) for tensor in tensors))
        return pytree.tree_map_only(torch.Tensor, lambda fake: _result(fake, generator, factor), fake_results)

    return kernel


def _generator(*texts: str) -> torch.Generator:
    digest = hashlib.sha256("\n".join(texts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _feature(tensor: torch.Tensor, generator: torch.Generator) -> float:
    """A number of the order of 1 that depends on every element of a tensor."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = torch.nan_to_num(values.detach().double().reshape(-1), posinf=1e6, neginf=-1e6)
    if not len(flat):
        return 0.0
    weights = torch.randn(len(flat), generator=generator, dtype=torch.float64)
    size = float(flat.square().mean().sqrt())
    return float(flat @ weights) / math.sqrt(len(flat)) / (1 + size) + size / (1 + size)


def _result(fake: torch.Tensor, generator: torch.Generator, factor: float) -> torch.Tensor:
    sizes = [size if isinstance(size, int) else _UNKNOWN_SIZE for size in fake.shape]
    if not (fake.is_floating_point() or fake.is_complex()):
        return torch.zeros(sizes, dtype=fake.dtype)
    return (torch.rand(sizes, generator=generator, dtype=torch.float64) * factor).to(fake.dtype)
