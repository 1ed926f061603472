"""The known facts about a package: an existing one, or the one that would be built now from a model. ``trtbuild diff``
compares two of them.

Rules
1. The index of a package is always known. The keys of its engines are known if the cache has the record of the package
   step. The recipes of its engines are known if the cache has the records of the engine steps. A record that is not trusted
   on this machine counts as missing.
2. A model is planned, but no step is run. If a step has to run before the graph is known, only the manifest and the recipes
   up to this step are known.
3. The index of a package has the names of some weights. If the project's last build made this package, the names of all
   weights come from the trace of that build. If both compared sides have equal partitions, a missing name comes from the
   other side (`driver.answers.differences`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trtbuild.core.engines.binding import Interface
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Input, Model
from trtbuild.core.packages.package_recipe import package_recipe
from trtbuild.core.planning.graph import USER_CODE_STAGES, ModelPlan
from trtbuild.core.recipes.key_fields import fields_of
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.packages.lookup import directory_of, refuse_unknown_name
from trtbuild.driver.project import wiring
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.driver.project.history import History
from trtbuild.driver.project.workspace import Request, Workspace
from trtbuild.errors import BlobMissing, EntryCorrupt, PackageError, RecordUntrusted, StoreUnavailable, UsageError
from trtbuild.runtime.packages.package import Package, open_package
from trtbuild.store.collection.search import records_with_output
from trtbuild.store.layers.layered import LayeredStore

JsonObject = Mapping[str, Any]


@dataclass(frozen=True)
class PackageFacts:
    """The known facts about a package, or about a model as it would be built now.

    An unknown field is None or an empty mapping."""

    #: The directory of the package, or the name of the model, as typed by the user.
    title: str
    kind: Literal["package", "model"]
    model: str
    #: Where the other fields come from: ``recipes`` of package and engines, the package's ``index``, or the ``manifest``.
    known_from: Literal["recipes", "index", "manifest"]
    inputs: Mapping[str, JsonObject]
    dims: Mapping[str, JsonObject]
    profiles: Mapping[str, JsonObject]
    targets: Mapping[str, JsonObject]
    precision: str
    #: Whether the package can run without engines.
    reference: bool = False
    outputs: Mapping[str, JsonObject] | None = None
    #: Target → partition → kind, graph, weights (their slots), inputs. A slot is the number of a weight in the trace.
    partitions: Mapping[str, Mapping[str, JsonObject]] | None = None
    #: ``partition@target`` → key of the engine step.
    engines: Mapping[str, str] | None = None
    #: ``partition@target`` → SHA-256 of the engine's plan (TensorRT's file).
    plans: Mapping[str, str] | None = None
    #: Step id without the model's name (``engine/p0@ada``) → recipe.
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    #: For a model whose graph is not known: the first step that has to run, with an id as in `recipes`, and the reason.
    blocking_step: tuple[str, str] | None = None
    #: Slot → name of the weight.
    weight_names: Mapping[int, str] = field(default_factory=dict)
    #: Slot → dtype, shape and SHA-256 of the weight.
    weights: Mapping[int, JsonObject] = field(default_factory=dict)


def find_facts(request: Request, title: str) -> PackageFacts:
    """The facts about the package in the directory `title`, or about the model with this name.

    Raises UsageError if there is neither, or if the package cannot be read.
    """
    folder = directory_of(request.project, title)
    if folder is not None:
        try:
            package = open_package(folder)
        except PackageError as error:  # PackageError exits with 1, which means for `diff` that the sides differ
            raise UsageError(error.text, hint=error.hint) from error
        return facts_of_package(request.project.absolute(), package, title)
    models = Workspace(replace(request, models=(), targets=())).models
    refuse_unknown_name(title, models)
    workspace = Workspace(replace(request, models=(title,), force=False))
    return _facts_of_model(workspace, workspace.plan(title))


# -- a model


def _facts_of_model(workspace: Workspace, plan: ModelPlan) -> PackageFacts:
    model, shapes = plan.model, plan.shapes
    prefix = f"{model.name}/"
    recipes = {step.id.removeprefix(prefix): step.recipe for step in plan.steps.values() if step.recipe is not None}
    declared_facts = PackageFacts(
        title=model.name,
        kind="model",
        model=model.name,
        known_from="manifest",
        inputs={entry.name: _input_fields(entry) for entry in model.inputs},
        dims=_dim_fields(shapes),
        profiles=_profile_shapes(model),
        targets={
            target.name: {**fields_of(target), "version": workspace.facts[model.name].toolchains[target].version}
            for target in model.targets
        },
        precision=model.precision,
        reference=model.reference,
        recipes=recipes,
    )
    if plan.contents is None:
        first = next(step for step in plan.steps.values() if step.verdict != "hit")
        return replace(declared_facts, blocking_step=(first.id.removeprefix(prefix), first.reason.text))
    contents = plan.contents
    return replace(
        declared_facts,
        **_fields_from_parts(_plain_parts(package_recipe(contents))),
        plans=contents.plans(),
        weight_names={number: slot.name for number, slot in enumerate(contents.interface.slots)},
        weights={number: asdict(weight) for number, weight in enumerate(contents.weights)},
    )


def _input_fields(entry: Input) -> dict[str, Any]:
    values = {} if entry.range is None else {"range": list(entry.range)}
    return {"dtype": entry.dtype, "keyword": entry.keyword, **values}


def _dim_fields(shapes: ShapePlan) -> dict[str, JsonObject]:
    return {
        symbol.name: {"min": symbol.min, "max": symbol.max, "multiple_of": symbol.multiple_of}
        for symbol in shapes.symbols
    }


def _profile_shapes(model: Model) -> dict[str, JsonObject]:
    return {profile.name: {name: _plain(asdict(shape)) for name, shape in profile.shapes} for profile in model.profiles}


def _plain_parts(recipe: Recipe) -> dict[str, Any]:
    return {name: _plain(value) for name, value in recipe.parts}


def _plain(value: Any) -> Any:
    """The value with its tuples as lists, so that it can be compared with a value in a package index."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _fields_from_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `PackageFacts` from the parts of a package's recipe. An index has parts of the same names."""
    return {
        "known_from": "recipes",
        "inputs": {entry["name"]: _without_fields(entry, "name") for entry in parts["inputs"]},
        "outputs": {entry["name"]: _without_fields(entry, "name") for entry in parts["outputs"]},
        "dims": {entry["name"]: _without_fields(entry, "name") for entry in parts["dims"]},
        "profiles": {entry["name"]: entry["shapes"] for entry in parts["profiles"]},
        "targets": parts["targets"],
        "precision": parts["precision"],
        "reference": parts.get("reference", False),
        "partitions": {target: _partition_fields(entry) for target, entry in parts["partitions"].items()},
        "engines": parts["engines"],
    }


def _partition_fields(target: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {
        entry["name"]: {name: entry[name] for name in ("kind", "graph", "weights", "inputs")}
        for entry in target["partitions"]
    }


def _without_fields(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}


# -- a package


def facts_of_package(project: Path, package: Package, title: str, *, offline: bool = False) -> PackageFacts:
    """All that is known about a package (rules 1 and 3). With `offline`, no remote is used.

    If the cache cannot be read or its entries are damaged, the fields come from the index only.
    """
    index = json.loads(package.index_bytes)
    targets = {name: _without_fields(entry, "partitions", "engines") for name, entry in index["targets"].items()}
    partitions = {name: entry["partitions"] for name, entry in index["targets"].items()}
    plans = {
        f"{partition}@{target}": index["files"][path]["sha256"]
        for target, entry in index["targets"].items()
        for partition, path in entry["engines"].items()
    }
    facts = PackageFacts(
        title=title,
        kind="package",
        model=index["model"],
        **{
            **_fields_from_parts({**index, "targets": targets, "partitions": partitions, "engines": None}),
            "known_from": "index",
            "plans": plans,
            "weight_names": {int(slot): entry["name"] for slot, entry in index["weights"].items()},
            "weights": {int(slot): _without_fields(entry, "name") for slot, entry in index["weights"].items()},
        },
    )
    try:
        effective = wiring.load_configuration(project)
        store = wiring.open_store(project, replace(effective, remotes=()) if offline else effective)
        history = History(project / STATE_FOLDER)
        record = _find_package_record(store, history, facts.model, package.digest)
        return facts if record is None else _add_records(facts, record, store, history)
    except (StoreUnavailable, BlobMissing, EntryCorrupt):
        return facts


def _find_package_record(store: LayeredStore, history: History, model: str, index_sha256: str) -> Record | None:
    """The record of a package step whose output is the index with this digest; None if the cache lacks it.

    The record of the project's last package step is tried first.
    """
    last = history.recipe(f"{model}/package")
    record = _trusted_record(store, last.key) if last is not None else None
    if record is not None and record.outputs["index"].sha256 == index_sha256:
        return record
    return next(
        (record for record in records_with_output(store.local, index_sha256) if record.recipe.stage == "package"), None
    )


def _trusted_record(store: LayeredStore, key: str) -> Record | None:
    """The record with this key; None if the cache lacks it, or if it is not trusted on this machine."""
    try:
        return store.get_record(key)
    except RecordUntrusted:
        return None


def _add_records(facts: PackageFacts, package: Record, store: LayeredStore, history: History) -> PackageFacts:
    """Add the fields from the records of the package step and the engines, and from the last build."""
    engines = _plain_parts(package.recipe)["engines"]
    recipes = _engine_recipes(engines, store)
    weights = {**facts.weights, **_engine_weights(facts.partitions or {}, recipes)}
    weight_names = facts.weight_names
    last = history.recipe(f"{facts.model}/package")
    if last is not None and last.key == package.recipe.key:
        for stage in (*USER_CODE_STAGES, "lower", "partition"):
            recipe = history.recipe(f"{facts.model}/{stage}")
            if recipe is not None:
                recipes[stage] = recipe
        trace = _trusted_record(store, recipes["trace"].key) if "trace" in recipes else None
        if trace is not None:
            interface = Interface.from_bytes(store.get_bytes(trace.outputs["interface"].sha256))
            weight_names = {number: slot.name for number, slot in enumerate(interface.slots)}
    return replace(
        facts, known_from="recipes", engines=engines, recipes=recipes, weight_names=weight_names, weights=weights
    )


def _engine_recipes(engines: Mapping[str, str], store: LayeredStore) -> dict[str, Recipe]:
    """Step id without the model's name → recipe, for the engines whose records the cache has."""
    records = {name: _trusted_record(store, key) for name, key in engines.items()}
    return {f"engine/{name}": record.recipe for name, record in records.items() if record is not None}


def _engine_weights(
    partitions: Mapping[str, Mapping[str, JsonObject]], recipes: Mapping[str, Recipe]
) -> dict[int, JsonObject]:
    """Slot → dtype, shape and SHA-256, for the weights in the recipes of engines."""
    weights: dict[int, JsonObject] = {}
    for step, recipe in recipes.items():
        partition, target = step.removeprefix("engine/").rsplit("@", 1)
        engine_weights = _plain_parts(recipe)["weights"]
        for number, slot in enumerate(partitions[target][partition]["weights"]):
            weights[slot] = engine_weights[f"w{number}"]
    return weights
