"""Operators from outside PyTorch: find them in programs, and define them without their code.

Rules
1. The steps calibrate and trace load the code that registers such an operator. So do the workers that verify a package
   or write its ``.pt2`` files. No other step loads this code. A stored program contains the schemas of such operators,
   so a process without the code can define them and read the program.
2. An operator that is defined here has no kernel, and no implementation for tensors without data. Steps do not run it
   (`trtbuild.stages.program.custom_calls`).
3. A process may read programs of several models. If two programs have different schemas for an operator that is defined
   here, the later schema replaces the earlier one. An operator whose code the process has loaded is never replaced.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._library.fake_impl import FakeImplCtx

from trtbuild import declared_sizes, quantized_operators
from trtbuild.errors import SourceError

#: Namespaces of the operators that belong to torch, or to trtbuild (`trtbuild.quantized_operators`,
#: `trtbuild.declared_sizes`). Their implementations need no digest: torch's version is in the key, and the results of
#: trtbuild's operators never change.
TORCH_NAMESPACES = frozenset(
    {"aten", "prim", "prims", "quantized", "quantized_decomposed", "_c10d_functional", "higher_order"}
    | {quantized_operators.NAMESPACE, declared_sizes.NAMESPACE}
)

#: The file with the schemas in a stored program. A program that calls no operators from outside PyTorch does not have this
#: file.
SCHEMAS_FILE = "trtbuild.operators"

#: torch's dispatch keys of kernels for the CPU.
_CPU_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

#: A default of type Device in the text of a schema. torch writes it without the quotes that torch needs to read it.
_DEVICE_DEFAULT = re.compile(r"\b(Device\??\s+\w+=)(?!None\b)([a-z]\w*(?::\d+)?)")

#: Name of an operator that is defined here → its schema and its library. An operator exists as long as its library.
_defined_here: dict[str, tuple[str, Any]] = {}


def is_custom(target: Any) -> bool:
    """Whether a node's target is an operator from outside PyTorch."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in TORCH_NAMESPACES


def schemas_in(module: torch.fx.GraphModule) -> dict[str, str]:
    """The operators from outside PyTorch that a graph and its nested graphs call: name → schema."""
    targets = (
        node.target
        for submodule in module.modules()
        if isinstance(submodule, torch.fx.GraphModule)
        for node in submodule.graph.nodes
        if is_custom(node.target)
    )
    return {overload_name(target): str(target._schema) for target in sorted(targets, key=overload_name)}


def overload_name(target: torch._ops.OpOverload) -> str:
    """The name of an operator, such as ``mylib.twist.default``."""
    return f"{target.namespace}.{target._opname}.{target._overloadname}"


def registered_schema(name: str) -> str | None:
    """The schema of an operator in this process; None if the operator is not registered."""
    target: Any = torch.ops
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError:
        return None
    return str(target._schema) if isinstance(target, torch._ops.OpOverload) else None


def has_cpu_kernel(name: str) -> bool:
    namespace, operator, overload = name.split(".")
    overload_name = f"{namespace}::{operator}" + ("" if overload == "default" else f".{overload}")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(overload_name, key) for key in _CPU_KEYS)


def stored_schemas(program: bytes) -> dict[str, str]:
    """The schemas in a stored program: name of the operator → schema."""
    if SCHEMAS_FILE.encode() not in program:
        return {}
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        for entry in archive.namelist():
            if entry.endswith(f"/extra/{SCHEMAS_FILE}"):
                return {str(name): str(schema) for name, schema in json.loads(archive.read(entry)).items()}
    return {}


def define_missing_operators(schemas: Mapping[str, str]) -> None:
    """Define the operators that this process does not have (rules 1 and 3).

    Raises SourceError if the process has loaded an operator of the same name with another schema, or if torch cannot read
    a schema."""
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
        try:
            library.define(_DEVICE_DEFAULT.sub(r'\1"\2"', signature))
        except RuntimeError as error:
            library._destroy()
            raise SourceError(
                f"torch cannot read its own text of the schema {schema}",
                code="operator-schema",
                hint="let the operator have no such default, for example a text with other characters than those of ASCII",
            ) from error
        _defined_here[name] = schema, library


@contextlib.contextmanager
def allow_data_dependent_sizes_below_two() -> Iterator[None]:
    """Inside the block, let sizes that depend on data be 0 or 1, also in older fake implementations.

    Older implementations call torch's deprecated ``create_unbacked_symint``, which declares that such a size is at least 2.
    For example, torchvision 0.28 calls it for nms, although nms may keep one box or none."""
    original = FakeImplCtx.create_unbacked_symint

    def create_unbacked_symint(self: FakeImplCtx, *, min: int = 2, max: int | None = None) -> torch.SymInt:
        return self.new_dynamic_size(min=0 if min == 2 else min, max=max)

    FakeImplCtx.create_unbacked_symint = create_unbacked_symint
    try:
        yield
    finally:
        FakeImplCtx.create_unbacked_symint = original
