"""Make a project of thousands of models, most of which are not built but get copies of stored results.

``python -m benchmarks.clones DIR --models 2000 --built 200`` adds models to a project of `projects.write_many` whose first
200 models are built. Each new model has its own source, its own records (the results of its steps) and its own package in
``dist/``. So planning a new model is as much work as planning a built model. The files of a new package are hard links.
They describe the built model, but planning only compares their bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from benchmarks import projects
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.recipes import chain
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.record import Output, Record
from trtbuild.driver.project.workspace import Request, Workspace

#: Stage → the outputs to which `_outputs` adds bytes, so that the later steps of a new model have new keys. The outputs of
#: the partition step change in another way (see `_outputs`).
_CHANGED_OUTPUTS = {"trace": ("graph",), "lower": ("graph",), "partition": (), "convert": ("onnx",)}


def write_clones(folder: Path, model_count: int, built_count: int, target_count: int = 5) -> Path:
    """Add models to a project until it has `model_count` models. Only the first `built_count` models are built.

    The new models get copies of the built models' records.
    """
    projects.write_many(folder, model_count, target_count)
    workspace = Workspace(Request(folder))
    names = list(workspace.models)
    with workspace.store.local.session():
        for number in range(built_count, model_count):
            original = names[number % built_count]
            if any(step.verdict != "hit" for step in workspace.plan(names[number]).steps.values()):
                _clone(workspace, workspace.plan(original), names[number])
            if not (folder / "dist" / names[number]).exists():
                shutil.copytree(folder / "dist" / original, folder / "dist" / names[number], copy_function=os.link)
    return folder


def _clone(workspace: Workspace, original: ModelPlan, name: str) -> None:
    plan = workspace.plan(name)
    _extend_chain(workspace, original, plan)
    # Each pass copies the steps whose inputs exist, so at most as many passes as steps are needed.
    for _ in original.steps:
        plan = workspace.plan(name)
        missing = [step for step in plan.steps.values() if step.verdict == "run"]
        if not missing:
            break
        for step in missing:
            record = original.steps[original.model.name + step.id.removeprefix(name)].record
            if record is None or step.recipe is None:
                raise RuntimeError(f"{original.model.name} is not built")
            copy = Record(step.recipe, _outputs(workspace, step, record.outputs), record.provenance)
            workspace.store.put_record(copy)
            workspace.lookups.note_run(step.id, copy)
    if any(step.verdict != "hit" for step in workspace.plan(name).steps.values()):
        raise RuntimeError(f"{name} is not a copy of {original.model.name}")


def _extend_chain(workspace: Workspace, original: ModelPlan, plan: ModelPlan) -> None:
    """Write the links (`trtbuild.core.recipes.chain`) that lead from the manifest to the record of the model's trace.

    A link names dependencies of the trace, such as files that it read. The dependencies of `original` are copied, with the
    name of the new source file.
    """
    old, new = (f"models/{each.model.name}" for each in (original, plan))
    lookups = workspace.lookups
    dependencies = [
        Dependency.from_part(observation.dependency.part.replace(old, new))
        for observation in original.user_code["trace"].observations
    ]
    observations = [Observation(dependency, lookups.observe(dependency)) for dependency in dependencies]
    declared: Declared = plan.user_code["trace"].declared
    chain.extend(declared, observations, lookups.read_link, lookups.write_link, lookups.observe)


def _outputs(workspace: Workspace, step: Step, outputs: Mapping[str, Output]) -> dict[str, Output]:
    """Return the outputs of a copied record.

    The outputs in `_CHANGED_OUTPUTS` get other bytes, and the partitions get programs with other digests.
    """
    store = workspace.store
    copied = dict(outputs)
    for output in _CHANGED_OUTPUTS.get(step.stage, ()):
        copied[output] = store.put_bytes(store.get_bytes(outputs[output].sha256) + f"\n{step.id}".encode())
    if step.stage == "partition":
        document = store.get_bytes(outputs["partitions"].sha256)
        for output in outputs:
            if output.startswith("program:"):
                digest = output.removeprefix("program:")
                new_digest = store.put_bytes(f"{digest} {step.id}".encode()).sha256
                document = document.replace(digest.encode(), new_digest.encode())
                copied[f"program:{new_digest}"] = copied.pop(output)
        copied["partitions"] = store.put_bytes(document)
    return copied


def main() -> None:
    """Add models to a project whose first models are built."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clones", description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--models", dest="model_count", type=int, default=2000, metavar="N")
    parser.add_argument("--built", dest="built_count", type=int, default=200, metavar="N")
    parser.add_argument("--targets", dest="target_count", type=int, default=5, metavar="N")
    write_clones(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
