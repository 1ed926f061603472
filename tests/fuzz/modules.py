"""Creates modules from text, so that they can be printed, read and tried by hand."""

from __future__ import annotations

import linecache
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.fuzz.pipeline import Axis, ModuleCase

#: The names that the text can use.
NAMES: Mapping[str, Any] = {"torch": torch, "F": F, "inf": math.inf, "nan": math.nan}


def module_from_text(
    statements: Sequence[str],
    result: str,
    arity: int,
    parts: Mapping[str, Any] | None = None,
    names: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """The module with the method ``forward(self, x0, x1, …)``, which runs the statements and returns `result`.

    `arity` is the number of inputs. `parts` are submodules and buffers of the module. `names` are further names that the
    text can use.
    """
    arguments = ", ".join(["self", *(f"x{k}" for k in range(arity))])
    source = "\n".join([f"def forward({arguments}):", *(f"    {line}" for line in [*statements, f"return {result}"])])
    file = f"<fuzz {zlib.crc32(source.encode()):08x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {**NAMES, **(names or {})}
    exec(compile(source, file, "exec"), namespace)
    module = type("Written", (torch.nn.Module,), {"forward": namespace["forward"], "source": source})()
    for name, part in (parts or {}).items():
        if isinstance(part, torch.Tensor):
            module.register_buffer(name, part)
        else:
            setattr(module, name, part)
    return module.eval()


def case_text(case: ModuleCase) -> str:
    dim_at = {place: dim for dim in case.dims for place in dim.at}
    lines = []
    for k, (dtype, axes) in enumerate(case.inputs):
        shape = [_axis_text(axis, dim_at.get((f"x{k}", number))) for number, axis in enumerate(axes)]
        lines.append(f"x{k}: {dtype}[{', '.join(shape)}]")
    settings = [f"precision={case.precision}"] if case.precision != "float32" else []
    settings += [f"granularity={list(case.granularity)}"] if case.granularity != ("model",) else []
    settings += [f"torch_executed_ops={list(case.torch_executed_ops)}"] if case.torch_executed_ops else []
    lines += [" ".join(settings)] if settings else []
    lines.append(getattr(case.module, "source", repr(case.module)))
    lines += [f"self.{name} = {_part_text(part)}" for name, part in _parts(case.module)]
    return "\n".join(lines)


def _axis_text(axis: Axis, dim: Any) -> str:
    if isinstance(axis, int):
        return str(axis)
    text = "..".join(map(str, axis))
    if dim is None:
        return text
    return f"{dim.name}={text}" + (f" in {dim.multiple_of}s" if dim.multiple_of > 1 else "")


def _parts(module: torch.nn.Module) -> list[tuple[str, Any]]:
    return [*module.named_buffers(recurse=False), *module.named_children()]


def _part_text(part: Any) -> str:
    if not isinstance(part, torch.Tensor):
        return " ".join(repr(part).split())
    values = f" {part.flatten().tolist()}" if part.numel() <= 16 else ""
    return f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}{values}"
