"""Operators from outside PyTorch that a model calls, such as those of torchvision and of ``torch.library.custom_op``.

PyTorch runs them, unless the manifest maps them to TensorRT plugins (`trtbuild.core.model.plugins`). In a build, only
calibrate, trace and the writing of ``.pt2`` files import the code that registers the operators; after the build, `verify`
imports it. The other steps use the operators' schemas, which the trace records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Advice for a program that loads a package: the argument with which the package imports the modules of its operators.
IMPORT_ADVICE = "load with `import_operators=True`"


@dataclass(frozen=True)
class CustomOperator:
    """An operator from outside PyTorch.

    `name` is the name of its overload, such as ``mylib.twist.default``. `schema` is torch's text of the schema:
    ``mylib::twist(Tensor x, float a) -> Tensor``. `module` is the module that registers the operator, and `distribution`
    and `version` are those of this module. Each of these three is None if it is not known. `has_cpu_kernel` is False if the
    operator has no implementation for tensors on the CPU.
    """

    name: str
    schema: str
    module: str | None = None
    distribution: str | None = None
    version: str | None = None
    has_cpu_kernel: bool = True

    @property
    def qualified_name(self) -> str:
        """``mylib::twist``, as torch writes the name without its overload."""
        namespace, operator, _ = self.name.split(".")
        return f"{namespace}::{operator}"

    @property
    def import_advice(self) -> str:
        """Advice on how to register the operator: the module to import, and the command that installs this module."""
        if self.module is None:
            return f"import the module that registers {self.qualified_name}"
        text = f"`import {self.module}` first, or {IMPORT_ADVICE}"
        return text if self.distribution is None else f"{text}; {self.install_command} installs it"

    @property
    def install_command(self) -> str:
        """The pip command that installs the distribution; empty if the distribution is not known."""
        if self.distribution is None:
            return ""
        version = (self.version or "").partition("+")[0]  # the part after + (as in 2.6.0+cu124) is not on PyPI
        return f"`pip install {self.distribution}{f'=={version}' if version else ''}`"

    def to_json(self) -> dict[str, Any]:
        """The JSON of an operator. Members with their default are left out."""
        optional = {"module": self.module, "distribution": self.distribution, "version": self.version}
        return {
            "name": self.name,
            "schema": self.schema,
            **{name: value for name, value in optional.items() if value is not None},
            **({} if self.has_cpu_kernel else {"has_cpu_kernel": False}),
        }

    @classmethod
    def from_json(cls, data: Any) -> CustomOperator:
        """The inverse of `to_json`. Unknown members are ignored. Raises ValueError if `data` has another structure."""
        texts = ("name", "schema", "module", "distribution", "version")
        if not isinstance(data, Mapping) or not {"name", "schema"} <= data.keys():
            raise ValueError("an operator has a name and a schema")
        if not all(isinstance(data[name], str) and data[name] for name in texts if name in data):
            raise ValueError(f"a member of an operator ({', '.join(texts)}) is empty, or a value that is not text")
        if data["name"].count(".") != 2:
            raise ValueError(f"{data['name']!r:.80} is not the name of an operator")
        if not isinstance(data.get("has_cpu_kernel", True), bool):
            raise ValueError(f"has_cpu_kernel of the operator {data['name']!r:.80} is neither true nor false")
        module = data.get("module")
        if module is not None and not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{module!r:.80} is not the name of a module")
        return cls(**{name: data[name] for name in (*texts, "has_cpu_kernel") if name in data})
