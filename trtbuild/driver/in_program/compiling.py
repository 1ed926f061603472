"""`trtbuild.compile`: build engines for a module in memory, and return a module that runs them.

The module is traced in this process. All later steps run as on the command line. So a program uses the engines that CI has
built from a manifest, and CI uses the engines of a program.
"""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.engines.binding import weights_to_json
from trtbuild.core.engines.engine_job import Weight
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model, Origin, Source
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.codec import encode
from trtbuild.driver.answers import report
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.arguments.inputs import Input
from trtbuild.driver.in_program.messages import reword_errors
from trtbuild.driver.in_program.modules import class_name_of, describe_module, module_to_trace, positional_inputs
from trtbuild.driver.in_program.options import Options, options_of
from trtbuild.driver.in_program.targets import ensure_gpu
from trtbuild.driver.in_program.tracing import calling_line, shape_plan, trace_job
from trtbuild.driver.packages.machine import gpu_number
from trtbuild.errors import InternalError

if TYPE_CHECKING:
    from trtbuild.driver.in_program.workspace import ProgramWorkspace

__all__ = ["Input", "build_module", "compile"]


def compile(
    module: Any,
    inputs: Any = None,
    kwarg_inputs: Any = None,
    *,
    arg_inputs: Any = None,
    dims: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    ir: str | None = None,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Build engines for `module` and return a module that runs them.

    `module` is an ``nn.Module`` in evaluation mode, an ``ExportedProgram`` with its own Dims, or a module of TorchScript
    (``torch.jit.script``, ``torch.jit.trace``). It is not changed.

    * `inputs`: a list with an `Input` or a tensor for each positional argument. For several optimization profiles, it is a
      list of such lists. `arg_inputs` is another name of `inputs`.
    * `kwarg_inputs`: name → an `Input` or a tensor, for each keyword argument. An ``ExportedProgram`` needs neither
      `inputs` nor `kwarg_inputs`.
    * `dims` and `dynamic_shapes`: which axes have the same size (`trtbuild.driver.in_program.arguments.inputs`).
    * `ir`: ``"dynamo"``, ``"exported_program"`` or ``"ts"`` (which scripts an ``nn.Module``), as in Torch-TensorRT. The
      default depends on the type of `module`.
    * `name`: the model's name in the package and in messages. The default is the name of the module's class.
    * `options`: what to build, and where the result runs (`options_of`). ``torch.compile`` accepts the same options.

    The result is a module as ``trtbuild.load(…).module()`` returns it, with three more attributes: the method `save`
    (`trtbuild.save`), `report` (the document of ``trtbuild build --json``), and `package` (the built package).

    Raises UsageError (wrong arguments, or a machine that cannot build), NoFittingTarget (no GPU to run the result on),
    SourceError (the module's code fails or cannot be traced), ConversionRefused and ToolchainError (TensorRT rejects the
    model).
    """
    with reword_errors():
        module = module_to_trace(module, ir)
        model_name = checked.text("name", name) if name is not None else class_name_of(module)
        module_inputs = describe_module(
            module, positional_inputs(inputs, arg_inputs), kwarg_inputs, dims, dynamic_shapes
        )
        return build_module(module, module_inputs, options_of(**options), model_name, calling_line())


def build_module(module: Any, inputs: ModuleInputs, options: Options, name: str, origin: Origin) -> Any:
    """Trace `module`, build or look up all later steps, and load the result. `origin` is the line that called trtbuild."""
    from trtbuild.driver.in_program.saving import save
    from trtbuild.driver.in_program.workspace import ProgramWorkspace
    from trtbuild.driver.packages.loading import load_package
    from trtbuild.runtime.calls.torch_part import new_tensors_on_cpu

    started_s = time.monotonic()
    shapes = shape_plan(inputs)
    model = Model(
        name=re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("-.") or "module",
        source=Source("module", class_name_of(module)),
        inputs=inputs.inputs,
        profiles=inputs.profiles,
        targets=(options.target,),
        origin=origin,
        dims=inputs.dims,
        precision=options.precisions.default,
        module_precisions=options.precisions.modules,
        reference=options.reference,
        partition=options.partition,
        builder=options.builder,
        places={"source": origin},
    )
    on_cpu = gpu_number(options.device) is None
    if not on_cpu:
        ensure_gpu(options.target, model.name)
    with new_tensors_on_cpu():
        traced = _trace(module, model, shapes)
    workspace = ProgramWorkspace(model, shapes, options.cache_dir, options.jobs)
    with workspace.store.session():
        outputs = _store_trace(traced, workspace.store.put_bytes)
        # the digests distinguish this trace from those of other modules with the same name
        digests = {"graph": outputs["graph"].sha256, "weights": outputs["weights"].sha256}
        workspace.models[model.name] = replace(model, source=replace(model.source, kwargs=digests))
        workspace.set_trace(model.name, outputs, time.monotonic() - started_s)
        document = _run_build(workspace)
        target = None if on_cpu else options.target.name
        loaded = load_package(workspace.package, device=options.device, target=target)
        result = loaded.module()
    result.package = loaded.package
    result.report = document
    result.save = partial(save, result)
    return result


def _trace(module: Any, model: Model, shapes: ShapePlan) -> Any:
    from trtbuild.stages.trace.in_memory import trace_in_memory

    return trace_in_memory(module, trace_job(model, shapes), Path.cwd())


def _store_trace(traced: Any, put: Callable[[bytes | memoryview], Output]) -> dict[str, Output]:
    """Return output name → stored blob, as in the record of a trace."""
    from trtbuild.driver.workers.handlers import tensor_bytes

    outputs = {
        "program": put(traced.program),
        "graph": put(traced.graph.encode()),
        "modules": put(json.dumps(traced.modules).encode()),
        "interface": put(json.dumps(traced.interface).encode()),
    }
    weights_by_slot: dict[str, Weight] = {}
    for slot, tensor in traced.weights:
        dtype, shape, data = tensor_bytes(tensor)
        blob = put(data)
        outputs[f"weight:{slot}"] = blob
        weights_by_slot[str(slot)] = Weight(dtype, tuple(shape), blob.sha256)
    outputs["weights"] = put(json.dumps(weights_to_json(weights_by_slot)).encode())
    return outputs


def _run_build(workspace: ProgramWorkspace) -> dict[str, Any]:
    """Return the document of ``trtbuild build --json``. Raises the first error of the build."""
    from trtbuild.driver.building.build import build
    from trtbuild.driver.building.progress.events import Watcher
    from trtbuild.driver.in_program.kept_servers import KEPT

    frozen_objects, collector_enabled = gc.get_freeze_count(), gc.isenabled()
    try:
        result = build(workspace, Watcher(), KEPT)
    finally:
        # `build` calls `gc.freeze` and `gc.enable`, which suit a command. In the user's program, both are undone. If the
        # program itself has frozen objects, all stay frozen, because `gc.unfreeze` would thaw those of the program, too.
        if not frozen_objects:
            gc.unfreeze()
        if not collector_enabled:
            gc.disable()
    for _, error in result.outcome.failed.values():
        raise error
    for error in result.errors:
        raise error
    if not workspace.files:
        raise InternalError("a build ended without its package")
    document: dict[str, Any] = encode(report.build_document(result))
    return document
