"""Publish pointers: records that lead machines without PyTorch, or without a parser, to the records of other machines."""

from __future__ import annotations

from collections.abc import Sequence

from trtbuild.core.planning.model_plan import Facts, ModelPlan
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Observation
from trtbuild.core.recipes.lookup_recipes import partition_with_any_parser, with_any_versions
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.store.layers.layered import LayeredStore


def publish_for_any_versions(
    declared: Declared,
    observations: Sequence[Observation],
    record: Record,
    lookups: StoreLookups,
    store: LayeredStore,
) -> None:
    """Publish a pointer record, whose output is `record`, under a recipe without versions.

    A machine without torch finds the trace or the calibration by this recipe (`with_any_versions`).
    """
    declared = declared.without_versions()
    unversioned = [entry for entry in observations if entry.dependency.kind not in ("distribution", "import")]
    chained = chain.extend(declared, unversioned, lookups.read_link, lookups.write_link, lookups.observe)
    pointer_recipe = with_any_versions(keys.user_code(declared, chained))
    output = store.put_bytes(record.to_bytes())
    lookups.use_record(store.put_record(Record(pointer_recipe, {"record": output}), replace=True))


def publish_partitions_for_any_parser(plan: ModelPlan, facts: Facts, record: Record, store: LayeredStore) -> None:
    """Publish a pointer record, whose output is `record`, if machines use different parsers for the toolchain.

    A machine without a parser finds the partitions by the recipe of the pointer record (`partition_with_any_parser`).
    """
    pointer_recipe = partition_with_any_parser(record.recipe)
    toolchain = str(dict(pointer_recipe.parts)["parser"][0])  # type: ignore[index]
    if any(facts.toolchains[target].parsers_differ for target in plan.model.targets if target.toolchain == toolchain):
        output = store.put_bytes(record.to_bytes())
        store.put_record(Record(pointer_recipe, {"record": output}), replace=True)
