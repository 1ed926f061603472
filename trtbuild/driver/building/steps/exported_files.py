"""Create the ``.pt2`` files of a package (programs that `torch.export.load` reads), and store them as records."""

from __future__ import annotations

from trtbuild.core.packages.package_files import read_files
from trtbuild.core.planning.model_plan import ModelPlan
from trtbuild.core.recipes.lookup_recipes import exported_file_with_any_torch
from trtbuild.core.recipes.record import Record
from trtbuild.driver.configuration.builder import time_and_builder
from trtbuild.driver.outputs import pt2
from trtbuild.driver.project.environment import check_torch_libraries
from trtbuild.driver.project.workspace import Workspace
from trtbuild.driver.workers.pool import WorkerPool
from trtbuild.driver.workers.results import PT2Job
from trtbuild.driver.workers.tasks import call


def create_files(workspace: Workspace, plan: ModelPlan, pool: WorkerPool) -> None:
    """Create the ``.pt2`` files of a model whose package is built, if its outputs include them and the store lacks them.

    With ``--frozen``, create nothing. Raises ToolchainMissing (torch is not installed), EnvironmentFault (the lock file
    requires other versions), ConversionRefused or BlobMissing.
    """
    package = plan.package
    if package is None or package.record is None:
        raise AssertionError("outputs are written after the package is built")
    if "pt2" not in dict(plan.model.outputs) or workspace.request.frozen:
        return
    if workspace.exported_record(plan.model, package.record) is not None:
        return
    facts = workspace.facts[plan.model.name]
    check_torch_libraries(plan.model.name, facts)
    recipe = pt2.recipe(package.record, facts.versions)
    with workspace.store.building(recipe.key):
        workspace.lookups.forget(recipe.key)
        if workspace.exported_record(plan.model, package.record) is not None:
            return  # another build has stored the files meanwhile
        index_sha256 = package.record.outputs["index"].sha256
        files = [*read_files(workspace.lookups.blob(index_sha256)).files.values()]
        workspace.lookups.files.put_blobs(plan.model, [sha256 for sha256 in files if sha256 in plan.project_blobs])
        workspace.store.fetch([index_sha256, *files])
        job = PT2Job(index_sha256, tuple(plan.model.source.roots))
        has_operators = plan.contents is not None and bool(plan.contents.interface.operators)
        reply = call(pool, "pt2-with-operators" if has_operators else "pt2", job)
        outputs = reply.outputs
        provenance = {"duration_s": round(reply.duration_s, 3), **time_and_builder()}
        record = Record(recipe, outputs, provenance)
        workspace.lookups.note_run(f"{plan.model.name}/pt2", workspace.store.put_record(record, replace=True))
        workspace.store.put_record(Record(exported_file_with_any_torch(recipe), outputs, provenance), replace=True)
