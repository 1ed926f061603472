"""Find the float model of a model with ``quantize:``: the trace of the same model without ``quantize:``.

Rules
1. The trace of a quantized model stores many weights as quantized numbers only. So the model is traced a second time,
   without the calibration. The store keeps this float trace under the key of the model without ``quantize:``. A package
   never contains the weights of the float trace.
2. The float trace runs only when a verification needs it. With ``--frozen`` it does not run.
3. If the float trace fails, the model is verified without it. The error against the float model is then unknown.
"""

from __future__ import annotations

import json
from dataclasses import replace

from trtbuild.core.engines.binding import Interface, bind_weights, weights_from_json
from trtbuild.core.planning.graph import ModelPlan, step_id
from trtbuild.core.planning.model_plan import plan_model
from trtbuild.core.planning.verdicts import EVICTED
from trtbuild.core.recipes.record import Record
from trtbuild.driver.building.steps.run_step import run_step
from trtbuild.driver.building.steps.unchecked import UncheckedSteps
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.errors import TrtbuildError
from trtbuild.stages.verify.job import FloatProgram


class NoFloatTrace(Exception):
    """There is no float trace. The text is the reason."""


def float_program(workspace: Workspace, plan: ModelPlan, pool: WorkerPool) -> FloatProgram:
    """Return the traced float model of a model with ``quantize:``. The trace runs if there is no usable record.

    Raises NoFloatTrace."""
    model = replace(plan.model, name=f"{plan.model.name} (float)", quantization=None)
    facts = workspace.facts[plan.model.name]
    float_plan = plan_model(model, plan.declared_shapes, facts, workspace.lookups, is_in_place=lambda *_: False)
    step = float_plan.steps[step_id(model.name, "trace")]
    try:
        if step.verdict == "hit" and step.record is not None:
            found = _program(workspace, step.record)
            if all(workspace.lookups.has_blob(sha256) for sha256 in found.blobs()):
                return found
            step = float_plan.run_again(step, EVICTED)
        if workspace.request.frozen:
            raise NoFloatTrace("--frozen is set, and the cache does not have it")
        steps = UncheckedSteps(workspace.lookups)
        with workspace.store.building(step.key or step.id), steps.running(step, float_plan, None) as publication:
            ran = run_step(step, float_plan, facts, workspace.lookups, workspace.store, pool, publication)
        return _program(workspace, ran.record)
    except TrtbuildError as error:
        raise NoFloatTrace(error.text) from error


def _program(workspace: Workspace, record: Record) -> FloatProgram:
    interface = Interface.from_bytes(workspace.lookups.blob(record.outputs["interface"].sha256))
    weights = weights_from_json(json.loads(workspace.lookups.blob(record.outputs["weights"].sha256)))
    slots = bind_weights(interface, weights, None)[: interface.program_slot_count]
    return FloatProgram(record.outputs["program"].sha256, record.outputs["graph"].sha256, slots)
