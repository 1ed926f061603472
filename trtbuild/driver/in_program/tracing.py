"""`trtbuild.trace`: return the ``ExportedProgram`` from which `trtbuild.compile` would build engines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan, pairs_of_separate_symbols, proof_points
from trtbuild.core.model.spec import Model, Origin, Source
from trtbuild.driver.in_program.arguments.described import ModuleInputs
from trtbuild.driver.in_program.messages import reword_errors
from trtbuild.driver.in_program.modules import class_name_of, describe_module, module_to_trace, positional_inputs
from trtbuild.errors import UsageError
from trtbuild.runtime.calls.callers import user_frame

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from trtbuild.stages.trace.job import TraceJob


def trace(
    module: Any,
    inputs: Any = None,
    kwarg_inputs: Any = None,
    *,
    arg_inputs: Any = None,
    dims: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    ir: str | None = None,
) -> ExportedProgram:
    """Trace `module` and return a ``torch.export.ExportedProgram``.

    The arguments are those of `compile`, without `name` and `options`. The program has no in-place operators. It is
    compared with the module at the smallest and the largest sizes of each profile, and at points where
    only some sizes are 1. Random operators, writes to buffers and a module in training mode are errors.

    The program's sizes have the ranges of `inputs`, and its weights are in main memory. `compile`, ``torch.export.save``
    and ``exported_program:`` in a manifest accept the program. Its ``module()`` takes the arguments of `module`.

    Raises UsageError and SourceError.
    """
    from trtbuild.runtime.calls.torch_part import new_tensors_on_cpu
    from trtbuild.stages.trace.in_memory import export_in_memory

    with reword_errors():
        module = module_to_trace(module, ir)
        module_inputs = describe_module(
            module, positional_inputs(inputs, arg_inputs), kwarg_inputs, dims, dynamic_shapes
        )
        shapes = shape_plan(module_inputs)
        source, origin = Source("module", class_name_of(module)), calling_line()
        model = Model(
            source.target, source, module_inputs.inputs, module_inputs.profiles, (), origin, module_inputs.dims
        )
        with new_tensors_on_cpu():
            return export_in_memory(module, trace_job(model, shapes), Path.cwd())


def shape_plan(inputs: ModuleInputs) -> ShapePlan:
    """Return the shapes of `inputs`, with symbols for dynamic sizes. Raises UsageError if inputs contradict each other."""
    shapes, problems = derive(inputs.inputs, inputs.dims, inputs.profiles)
    if shapes is None:
        raise UsageError(
            "; ".join(problem.text for problem in problems),
            hint=next((problem.hint for problem in problems if problem.hint), None),
        )
    return shapes


def trace_job(model: Model, shapes: ShapePlan) -> TraceJob:
    """Return the job that traces `model`. Its errors name the model's `origin`."""
    from trtbuild.stages.trace.job import TraceJob

    place = f"{model.origin.file}:{model.origin.line}"
    # If the model requires two sizes to be equal, the trace may use one symbol for both. It may not do so for
    # `separate_pairs`, because the sizes of such a pair differ in a profile.
    points, separate_pairs = proof_points(shapes, model.profiles), pairs_of_separate_symbols(shapes, model.profiles)
    return TraceJob(model.source, model.inputs, shapes, points, None, {"model": place, "source": place}, separate_pairs)


def calling_line() -> Origin:
    """Return the line of the program that called trtbuild."""
    frame = user_frame()
    return Origin(frame.f_code.co_filename, frame.f_lineno)
