"""Operators from outside PyTorch: find them in programs, define them without their code, let dynamic sizes begin at 0.

Rules
1. The steps calibrate and trace load the code that registers such an operator, and so do the workers that verify a
   package or write its ``.pt2`` files. No other step loads it. A program contains the schemas of the operators from
   outside PyTorch that it calls. So a process without the code can read the program: the process defines operators
   with these schemas.
2. An operator that is defined here has no kernel, and no implementation for tensors without data. Steps do not run it
   (`trtbuild.stages.program.custom_calls`).
3. A process may read programs of several models. If a program has another schema for an operator that is defined
   here, the definition is replaced. An operator that the process has loaded itself is never replaced.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._library.fake_impl import FakeImplCtx

from trtbuild import declared_sizes, quantized_operators
from trtbuild.errors import SourceError

#: Namespaces of operators that belong to torch, whose version is in the key, or to trtbuild. The results of trtbuild's
#: operators (`trtbuild.quantized_operators`, `trtbuild.declared_sizes`) never change.
TORCH_NAMESPACES = frozenset(
    {"aten", "prim", "prims", "quantized", "quantized_decomposed", "_c10d_functional", "higher_order"}
    | {quantized_operators.NAMESPACE, declared_sizes.NAMESPACE}
)

#: The name of the file with the schemas in a stored program. Programs without custom operators do not have the file.
SCHEMAS_FILE = "trtbuild.operators"

#: The dispatch keys whose kernels run on tensors on the CPU.
_CPU_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

#: Name of an operator that is defined here → its schema and its library. An operator exists as long as its library.
_defined_here: dict[str, tuple[str, Any]] = {}


def is_custom(target: Any) -> bool:
    """Whether a node's target is an operator from outside PyTorch."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in TORCH_NAMESPACES


def schemas_in(module: torch.fx.GraphModule) -> dict[str, str]:
    """The operators from outside PyTorch that a graph and its nested graphs call: name of the overload → schema."""
    targets = (
        node.target
        for submodule in module.modules()
        if isinstance(submodule, torch.fx.GraphModule)
        for node in submodule.graph.nodes
        if is_custom(node.target)
    )
    return {overload_name(target): str(target._schema) for target in sorted(targets, key=overload_name)}


def overload_name(target: torch._ops.OpOverload) -> str:
    """The name of an operator's overload, such as ``mylib.twist.default``."""
    return f"{target.namespace}.{target._opname}.{target._overloadname}"


def registered_schema(name: str) -> str | None:
    """The schema of the operator ``mylib.twist.default`` in this process; None if the operator is not registered."""
    target: Any = torch.ops
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError:
        return None
    return str(target._schema) if isinstance(target, torch._ops.OpOverload) else None


def has_cpu_kernel(name: str) -> bool:
    """Whether the operator ``mylib.twist.default`` has an implementation for tensors on the CPU."""
    namespace, operator, overload = name.split(".")
    overload_name = f"{namespace}::{operator}" + ("" if overload == "default" else f".{overload}")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(overload_name, key) for key in _CPU_KEYS)


def stored_schemas(program: bytes) -> dict[str, str]:
    """The schemas in a stored program: name of the overload → schema. Empty if the program calls no custom operator."""
    if SCHEMAS_FILE.encode() not in program:
        return {}
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        for entry in archive.namelist():
            if entry.endswith(f"/extra/{SCHEMAS_FILE}"):
                return {str(name): str(schema) for name, schema in json.loads(archive.read(entry)).items()}
    return {}


def define_missing_operators(schemas: Mapping[str, str]) -> None:
    """Define the operators that this process does not have (rules 1 and 3).

    Raises SourceError if the process has loaded an operator of the same name with another schema."""
    for name, schema in schemas.items():
        registered = registered_schema(name)
        if registered == schema:
            continue
        if registered is not None and name not in _defined_here:
            raise SourceError(
                f"the operator {name} has the schema {registered} in this process, but the program was traced with "
                f"{schema}",
                code="operator-schema",
                hint="load the code of the operator that the model was traced with",
            )
        if name in _defined_here:
            _, old_library = _defined_here.pop(name)
            old_library._destroy()
        namespace, _, signature = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(signature)
        _defined_here[name] = schema, library


@contextlib.contextmanager
def dynamic_sizes_from_zero() -> Iterator[None]:
    """Let sizes that depend on data begin at 0 inside the block, also in older fake implementations.

    ``create_unbacked_symint`` of torch declares that such a size is at least 2. It is deprecated. torchvision 0.28 calls it
    for nms, which may also keep one box or none."""
    original = FakeImplCtx.create_unbacked_symint

    def create_unbacked_symint(self: FakeImplCtx, *, min: int = 2, max: int | None = None) -> torch.SymInt:
        return self.new_dynamic_size(min=0 if min == 2 else min, max=max)

    FakeImplCtx.create_unbacked_symint = create_unbacked_symint
    try:
        yield
    finally:
        FakeImplCtx.create_unbacked_symint = original
