"""Plans of a small model, with a fake cache and fake files: which steps run after a change, and why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.core.conftest import ADA, BLACKWELL, HOPPER, NET, VERSIONS, FakeWorld, a_model, sha, weight, with_opt
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import PartitionSettings, Source
from trtbuild.core.planning.graph import ModelPlan, Step
from trtbuild.core.planning.jobs import ConvertJob
from trtbuild.core.recipes.recipe import Change
from trtbuild.core.recipes.record import Output, Record
from trtbuild.errors import SourceError

ENGINES = ["net/engine/layers.0@ada", "net/engine/layers.1@ada", "net/engine/layers.2@ada"]
CONVERTS = ["net/convert/layers.0"]  # all layers are equal, so they share one conversion

FIRST_BUILD = ["net/trace", "net/lower", "net/partition", *CONVERTS, *ENGINES, "net/package"]


def reason_of(world: FakeWorld, step: str, **changes: object) -> tuple[str, list[tuple[str, str, str]]]:
    reason = world.plan(a_model(**changes)).steps[step].reason
    return reason.code, [(change.part, change.was, change.now) for change in reason.changed]


def test_later_steps_are_unknown_and_name_the_step_they_wait_for(world: FakeWorld) -> None:
    plan = world.plan(a_model())
    assert {step.id: step.verdict for step in plan.steps.values()} == {
        "net/trace": "run",
        "net/lower": "unknown",
        "net/partition": "unknown",
        "net/convert": "unknown",
        "net/engine@ada": "unknown",
        "net/package": "unknown",
    }
    assert plan.steps["net/trace"].reason.code == "new"
    assert plan.steps["net/engine@ada"].reason.text == "known when net/partition has run"
    assert plan.steps["net/engine@ada"].target == "ada"
    assert plan.package is not None and plan.package.key is None


def test_after_each_stage_the_next_one_is_known(world: FakeWorld) -> None:
    plan = world.plan(a_model())
    for stage in ("trace", "lower", "partition"):
        assert plan.steps[f"net/{stage}"].verdict == "run"
        world.run(plan.steps[f"net/{stage}"], plan)
        plan = world.plan(a_model())
        assert plan.steps[f"net/{stage}"].verdict == "hit"
    assert [step.id for step in plan.steps.values() if step.verdict == "unknown"] == [*ENGINES, "net/package"]
    assert "net/convert" not in plan.steps and "net/engine@ada" not in plan.steps
    world.run(plan.steps["net/convert/layers.0"], plan)
    assert [s for s, verdict in world.verdicts(a_model()).items() if verdict == "run"] == [*ENGINES, "net/package"]


def test_the_first_build_runs_every_step_and_the_second_runs_nothing(world: FakeWorld) -> None:
    assert world.build(a_model()) == FIRST_BUILD
    assert world.build(a_model()) == []
    plan = world.plan(a_model())
    assert {step.reason.code for step in plan.steps.values()} == {"recorded"}
    assert {step.source for step in plan.steps.values()} == {"local"}


# -- early cut-off: if a step runs again and gives the same output, later steps do not run


def test_a_comment_runs_the_trace_and_nothing_after_it(world: FakeWorld) -> None:
    world.build(a_model())
    world.files["net.py"] = "# a comment\n" + NET
    assert reason_of(world, "net/trace") == (
        "changed",
        [("file:net.py", sha(NET), sha("# a comment\n" + NET))],
    )
    assert world.build(a_model()) == ["net/trace"]


def test_a_new_torch_runs_the_steps_that_use_torch_and_no_engine(world: FakeWorld) -> None:
    world.build(a_model())
    world.versions = {**VERSIONS, "torch": "2.14.0"}
    assert reason_of(world, "net/trace") == ("changed", [("versions.torch", "2.13.0", "2.14.0")])
    assert world.build(a_model()) == ["net/trace", "net/lower", "net/partition", *CONVERTS]


def test_an_edited_import_runs_the_trace_and_an_unrelated_file_does_not(world: FakeWorld) -> None:
    world.build(a_model())
    world.files["unrelated.py"] = "x"
    assert world.build(a_model()) == []
    world.files["helper.py"] = "another helper"
    assert world.build(a_model()) == ["net/trace"]
    world.distributions["timm"] = "1.1"
    assert reason_of(world, "net/trace") == ("changed", [("distribution:timm", "1.0", "1.1")])
    world.files["helper.py"], world.distributions["timm"] = "a helper", "1.0"
    assert world.build(a_model()) == []


def test_with_granularity_a_renamed_module_runs_the_partition_step(world: FakeWorld) -> None:
    """No graph text contains module paths. The lower step copies them to its output, so its recipe contains them."""
    world.build(a_model())
    world.files["net.py"] = NET.replace("layers.", "layers.b")
    assert world.build(a_model()) == ["net/trace", "net/lower", "net/partition", "net/package"]
    plan = world.plan(a_model())
    assert [step.id for step in plan.steps.values() if step.stage == "engine"] == [
        "net/engine/layers.b0@ada",
        "net/engine/layers.b1@ada",
        "net/engine/layers.b2@ada",
    ]


def test_without_granularity_a_renamed_module_keeps_the_partitions(world: FakeWorld) -> None:
    model = a_model(partition=PartitionSettings())
    world.build(model)
    world.files["net.py"] = NET.replace("layers.", "blocks.")
    assert world.build(model) == ["net/trace", "net/lower", "net/package"]


# -- only the necessary steps run


def test_opt_of_the_first_profile_is_the_example_of_the_trace_too(world: FakeWorld) -> None:
    world.build(with_opt(a_model(), 4))
    model = with_opt(a_model(), 5)
    assert reason_of(world, "net/trace", profiles=model.profiles)[1] == [("dims[0].example", "4", "5")]
    assert world.build(model) == ["net/trace", *ENGINES, "net/package"]


def test_opt_of_a_later_profile_runs_no_trace(world: FakeWorld) -> None:
    first = a_model().profiles[0]
    model = a_model(profiles=(first, *with_opt(a_model(), 5).profiles))
    world.build(model)
    model = a_model(profiles=(first, *with_opt(a_model(), 6).profiles))
    assert world.build(model) == [*ENGINES, "net/package"]


def test_a_builder_setting_rebuilds_the_engines_of_its_model_only(world: FakeWorld) -> None:
    first, second = a_model(), a_model(name="two", builder=BuilderSettings(optimization_level=2))
    world.build(first)
    assert world.build(second) == [step.replace("net/", "two/") for step in (*ENGINES, "net/package")]
    changed = replace(first, builder=BuilderSettings(tf32=False))
    assert reason_of(world, ENGINES[0], builder=changed.builder) == ("changed", [("settings.tf32", "true", "false")])
    assert world.build(changed) == [*ENGINES, "net/package"]
    assert world.build(second) == []


def test_one_changed_weight_runs_one_engine_and_the_package(world: FakeWorld) -> None:
    world.files["net.py"] = "".join(f"layer layers.{k} linear\n" for k in range(12))
    names = [f"layers.{k}.weight" for k in range(12)]
    world.add_weights_file("a.safetensors", dict.fromkeys(names, "old"))
    model = a_model(weights="a.safetensors")
    world.build(model)
    world.add_weights_file("a.safetensors", {**dict.fromkeys(names, "old"), "layers.7.weight": "new"})
    step = world.plan(model).steps["net/engine/layers.7@ada"]
    assert [(change.part, change.now) for change in step.reason.changed] == [
        ("weights.w0.sha256", weight("new").sha256)
    ]
    assert world.build(model) == ["net/engine/layers.7@ada", "net/package"]


def test_the_reason_names_the_changed_weight(world: FakeWorld) -> None:
    names = ["layers.0.weight", "layers.1.weight", "layers.2.weight", "nms.weight"]
    world.add_weights_file("a.safetensors", dict.fromkeys(names, "old"))
    model = a_model(weights="a.safetensors")
    world.build(model)
    world.add_weights_file("a.safetensors", {**dict.fromkeys(names, "old"), "layers.1.weight": "new"})
    reason = world.plan(model).steps["net/engine/layers.1@ada"].reason
    assert reason.text == "changed: layers.1.weight"
    assert reason.changed[0] == Change(
        "weights.w0.sha256", weight("old").sha256, weight("new").sha256, "layers.1.weight"
    )


def test_the_path_of_a_weights_file_does_not_matter(world: FakeWorld) -> None:
    for path in ("a.safetensors", "b.safetensors"):
        world.add_weights_file(path, {f"{name}.weight": name for name in ("layers.0", "layers.1", "nms", "layers.2")})
    world.build(a_model(weights="a.safetensors"))
    assert world.build(a_model(weights="b.safetensors")) == []


def test_another_name_in_a_weights_file_runs_the_trace(world: FakeWorld) -> None:
    world.files["net.py"] = "layer layers.0 linear\n"
    world.add_weights_file("a.safetensors", {"layers.0.weight": "v"})
    world.build(a_model(weights="a.safetensors"))
    world.tables["a.safetensors"]["alias"] = world.tables["a.safetensors"]["layers.0.weight"]
    assert world.plan(a_model(weights="a.safetensors")).steps["net/trace"].reason.code == "changed"


def test_equal_layers_with_equal_weights_share_one_engine(world: FakeWorld) -> None:
    world.files["net.py"] = "layer layers.0 linear\nlayer layers.1 linear\n"
    world.add_weights_file("a.safetensors", {"layers.0.weight": "same", "layers.1.weight": "same"})
    ran = world.build(a_model(weights="a.safetensors"))
    assert [step for step in ran if "/engine" in step] == [ENGINES[0]]
    plan = world.plan(a_model(weights="a.safetensors"))
    assert plan.steps[ENGINES[0]].key == plan.steps[ENGINES[1]].key


def test_another_precision_runs_every_step_except_the_trace(world: FakeWorld) -> None:
    world.build(a_model())
    assert reason_of(world, "net/lower", precision="float16") == ("changed", [("precision", "float32", "float16")])
    assert world.build(a_model(precision="float16")) == FIRST_BUILD[1:]
    assert world.build(a_model()) == []


def test_another_target_runs_its_engines_and_the_package(world: FakeWorld) -> None:
    world.build(a_model())
    both = a_model(targets=(ADA, BLACKWELL))
    assert world.build(both) == [*(step.replace("ada", "blackwell") for step in ENGINES), "net/package"]


def test_two_models_of_one_source_share_all_steps_except_the_package(world: FakeWorld) -> None:
    world.build(a_model())
    assert world.build(a_model(name="twin")) == ["twin/package"]
    first, second = world.plan(a_model()), world.plan(a_model(name="twin"))
    *shared, package = [step.key for step in first.steps.values()]
    assert [step.key for step in second.steps.values()][:-1] == shared
    assert second.package is not None and second.package.key != package


# -- several toolchains


def test_each_toolchain_has_its_partition_and_convert_steps(world: FakeWorld) -> None:
    model = a_model(targets=(ADA, BLACKWELL, HOPPER))
    ran = world.build(model)
    assert [step for step in ran if "/partition" in step] == ["net/partition", "net/partition@tensorrt-11.0.0"]
    assert [step for step in ran if "/convert" in step] == [
        "net/convert/layers.0",
        "net/convert/layers.0@tensorrt-11.0.0",
    ]
    assert world.build(model) == []
    world.trt = replace(world.trt, version="11.0.1")
    ran = world.build(model)
    assert {step.partition("@")[2] for step in ran if "/package" not in step} == {"tensorrt-11.0.1", "hopper"}


def test_each_target_has_the_names_of_the_nodes_of_its_own_conversion(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another opset may need other nodes, so node n1 of one conversion may be another operator than n1 of the other."""

    def convert(step: Step, plan: ModelPlan) -> tuple[dict[str, Output], dict[str, object]]:
        assert isinstance(step.job, ConvertJob)
        nodes = ["n0"] if step.job.opset == world.rtx.opset else ["n0", "n1"]
        return {"onnx": world.put(f"opset {step.job.opset}"), "origins": world.put([[node, 0] for node in nodes])}, {}

    monkeypatch.setattr(world, "_convert", convert)
    for targets in ((ADA, HOPPER), (HOPPER, ADA)):
        model = a_model(targets=targets)
        world.build(model)
        package = world.plan(model).package
        assert package is not None and package.record is not None
        names = json.loads(world.blob(package.record.outputs["names"].sha256))
        assert {target: sorted(nodes) for target, parts in names.items() for nodes in parts.values()} == {
            "ada": ["n0"],
            "hopper": ["n0", "n1"],
        }


def test_pinning_the_installed_version_runs_nothing(world: FakeWorld) -> None:
    world.build(a_model())
    assert world.build(a_model(targets=(replace(ADA, version=world.rtx.version),))) == []


def test_programs_of_the_second_toolchain_come_from_its_partition_step(world: FakeWorld) -> None:
    model = a_model(targets=(ADA, HOPPER))
    world.build(model)
    second = world.plan(model).steps["net/partition@tensorrt-11.0.0"]
    assert second.record is not None
    # the same program as other bytes, because torch.export.save does not always write the same bytes
    program = next(name for name in second.record.outputs if name == f"program:{sha('nms float32')}")
    other = world.put("the same program, in other bytes")
    world.keep(second.record.recipe, {**second.record.outputs, program: other})
    world.build(model)
    world.evict(other)
    world.placed.clear()  # as if the files of the package were removed from their paths
    assert [s for s, v in world.verdicts(model).items() if v == "run"] == ["net/partition@tensorrt-11.0.0"]


def test_the_steps_after_the_new_partition_of_a_second_toolchain_are_unknown(world: FakeWorld) -> None:
    world.build(a_model())
    verdicts = world.verdicts(a_model(targets=(ADA, HOPPER)))
    assert verdicts["net/partition@tensorrt-11.0.0"] == "run"
    assert verdicts["net/convert@tensorrt-11.0.0"] == "unknown"
    assert verdicts["net/engine@hopper"] == "unknown"
    assert verdicts["net/package"] == "unknown"
    assert all(verdicts[engine] == "hit" for engine in ENGINES)


# -- fields of a source


def test_with_cacheable_false_earlier_traces_are_not_used(world: FakeWorld) -> None:
    world.build(a_model())
    assert world.verdicts(a_model(source=Source("python", "net.py", cacheable=False)))["net/trace"] == "run"


def test_an_earlier_trace_without_the_declared_deps_is_not_used(world: FakeWorld) -> None:
    """The trace is older than `deps:` in the manifest, so it has not observed the files of `deps:`."""
    world.build(a_model())
    assert world.verdicts(a_model(source=Source("python", "net.py", deps=("data/*",))))["net/trace"] == "run"


def test_two_manifests_with_one_module_name_do_not_share_a_trace(world: FakeWorld) -> None:
    """``a/net.py`` and ``b/net.py`` are both imported as `net`. The trace links of one file
    (`core.recipes.chain`) must not lead to the trace of the other."""
    world.build(a_model(source=Source("python", "net.py", roots=("a", "."))))
    assert world.verdicts(a_model(source=Source("python", "net.py", roots=("b", "."))))["net/trace"] == "run"


# -- packages


def test_a_package_runs_again_when_an_engine_has_other_bytes(world: FakeWorld) -> None:
    """Not every toolchain builds engines reproducibly: two engines with one key may have different bytes."""
    world.build(a_model())
    engine = world.plan(a_model()).steps[ENGINES[1]]
    assert engine.record is not None
    old, new = engine.record.outputs["plan"], world.put("the same engine, in other bytes")
    world.keep(engine.record.recipe, {**engine.record.outputs, "plan": new})
    code, changed = reason_of(world, "net/package")
    assert (code, changed) == ("changed", [("plan:layers.1@ada", old.sha256, new.sha256)])
    assert world.build(a_model()) == ["net/package"]


def test_a_package_is_unknown_until_its_engine_is_built_again(world: FakeWorld) -> None:
    world.build(a_model())
    del world.records[world.plan(a_model()).steps[ENGINES[1]].key or ""]
    package = world.plan(a_model()).package
    assert package is not None
    assert (package.verdict, package.reason.text) == ("unknown", f"known when {ENGINES[1]} has run")
    assert world.build(a_model()) == [ENGINES[1]]  # the engine has the same bytes again, so the package is a hit


# -- tied weights


def test_tied_weights_that_differ_in_the_file_are_an_error(world: FakeWorld) -> None:
    world.files["net.py"] = "layer layers.0 linear\n"
    world.add_weights_file("a.safetensors", {"layers.0.weight": "v"})
    model = a_model(weights="a.safetensors")
    world.build(model)
    record = world.plan(model).steps["net/trace"].record
    assert record is not None
    interface = world.blob(record.outputs["interface"].sha256).replace(
        b'"aliases": {}', b'"aliases": {"tied.weight": "layers.0.weight"}'
    )
    # the trace's recipe contains the names in the weights file, so the changed file needs another trace record
    world.add_weights_file("a.safetensors", {"layers.0.weight": "v", "tied.weight": "w"})
    recipe = world.plan(model).steps["net/trace"].recipe
    assert recipe is not None
    world.keep(recipe, {**record.outputs, "interface": world.put(interface)})
    with pytest.raises(SourceError, match=r"layers\.0\.weight and tied\.weight are one tensor"):
        world.plan(model)


# -- machines without torch, which find traces of other machines through pointer records


def test_without_torch_a_trace_of_the_same_files_is_accepted_and_named(world: FakeWorld) -> None:
    world.build(a_model())
    world.versions = None
    world.distributions.clear()
    plan = world.plan(a_model())
    assert {step.verdict for step in plan.steps.values()} == {"hit"}
    assert "torch 2.13.0" in plan.steps["net/trace"].reason.text
    assert "torch is not installed here" in plan.steps["net/trace"].reason.text
    ran = world.build(replace(a_model(), builder=BuilderSettings(tf32=False)))
    assert ran == [*ENGINES, "net/package"]


def test_without_torch_an_edited_file_is_a_miss(world: FakeWorld) -> None:
    world.build(a_model())
    world.versions = None
    world.files["helper.py"] = "edited"
    plan = world.plan(a_model())
    assert plan.steps["net/trace"].verdict == "run"


def test_without_torch_a_pointer_to_another_trace_is_not_followed(world: FakeWorld) -> None:
    world.build(a_model())
    other = a_model(source=Source("python", "other.py"))
    world.files["other.py"] = "layer layers.0 conv\n"
    world.build(other)
    wrong = world.plan(other).steps["net/trace"].record
    world.versions = None
    pointers = [record for record in world.records.values() if record.recipe.stage == "trace-any"]
    assert wrong is not None and len(pointers) == 2
    for pointer in pointers:
        world.keep(pointer.recipe, {"record": world.put(wrong.to_bytes())})
    assert world.verdicts(a_model())["net/trace"] == "run"
    assert world.verdicts(other)["net/trace"] == "hit"


@pytest.mark.parametrize("damage", ["missing", "nonsense", "another recipe"])
def test_without_torch_a_damaged_pointer_is_a_miss(world: FakeWorld, damage: str) -> None:
    world.build(a_model())
    world.versions = None
    (pointer,) = (record for record in world.records.values() if record.recipe.stage == "trace-any")
    if damage == "missing":
        world.evict(pointer.outputs["record"])
    elif damage == "nonsense":
        world.keep(pointer.recipe, {"record": world.put("{}")})
    else:
        world.records[pointer.recipe.key] = Record(replace(pointer.recipe, version=99), pointer.outputs)
    assert world.verdicts(a_model())["net/trace"] == "run"


def test_every_step_lists_the_steps_before_it(world: FakeWorld) -> None:
    world.build(a_model())
    steps: dict[str, Step] = world.plan(a_model()).steps
    assert steps["net/lower"].producers == ("net/trace",)
    assert steps["net/partition"].producers == ("net/lower",)
    assert steps["net/convert/layers.1"].producers == ("net/partition",)
    assert steps["net/engine/layers.1@ada"].producers == ("net/convert/layers.1", "net/trace")
    converts = tuple(name for name in steps if name.startswith("net/convert/"))
    assert steps["net/package"].producers == (*ENGINES, "net/partition", "net/lower", *converts)
