"""Names and defaults in the files that one manifest includes. « marks a place that an error must name."""

from __future__ import annotations

from .conftest import BASE, Files

MODEL = 'source: {python: "net:build"}\n    inputs: {x: }'
HEAD = BASE.partition("models:")[0]


def with_defaults(defaults: str, *included: str, model: str = "") -> str:
    """A manifest with defaults, included files, and one model, which has the fields `model`."""
    include = f"include: [{', '.join(included)}]\n" if included else ""
    return f"{HEAD}{include}defaults: {defaults}\nmodels:\n  net:\n    {MODEL}\n{model}"


def test_rejects_names_that_are_defined_twice_across_includes(files: Files) -> None:
    files.write("more.yaml", BASE.partition("\n")[2])
    text = BASE.replace("  ada:", "  «ada:").replace("  batch:", "  «batch:").replace("  net:", "  «net:")
    files.assert_refused(
        text + "include: [more.yaml]\n",
        "target 'ada' is already defined at more.yaml:2:3",
        "profile 'batch' is already defined at more.yaml:4:3",
        "model 'net' is already defined at more.yaml:7:3",
    )


def test_a_default_applies_if_a_model_lacks_the_field(files: Files) -> None:
    text = with_defaults(
        "{targets: [ada], profiles: [batch], precision: float16, toolchain: tensorrt, dims: {n: x.0}, outputs: {plans: p}}"
    )
    model = files.model(text)
    assert (model.precision, model.dims[0].name, model.outputs) == ("float16", "n", (("plans", "p"),))
    assert model.targets[0].toolchain == "tensorrt"
    assert model.places["precision"].line == 7


def test_groups_are_merged_field_by_field_and_other_fields_are_replaced(files: Files) -> None:
    text = with_defaults(
        "{targets: [ada], profiles: [batch], builder: {tf32: false, workspace: 1KiB, max_aux_streams: 2}, "
        "partition: {min_block_size: 9}, dims: {n: x.0, m: x.1}, weights: w.pt}",
        model="    builder: {workspace: null, max_aux_streams: 3}\n    partition:\n    dims: {k: x.0}\n    weights: null\n",
    )
    model = files.model(text)
    assert (model.builder.tf32, model.builder.workspace, model.builder.max_aux_streams) == (False, None, 3)
    assert model.partition.min_block_size == 9
    assert [dim.name for dim in model.dims] == ["k"]
    assert model.weights is None


def test_the_toolchain_of_a_target_or_of_a_model_overrides_the_default(files: Files) -> None:
    head = HEAD.replace("  ada: {sm: 89}", "  ada: {sm: 89}\n  old: {sm: 89, toolchain: tensorrt-rtx}")
    text = f"""\
{head}
defaults: {{toolchain: tensorrt, targets: [ada, old], profiles: [batch]}}
models:
  plain:
    {MODEL}
  own:
    {MODEL}
    toolchain: tensorrt-rtx
"""
    toolchains = {
        model.name: [target.toolchain for target in model.targets] for model in files.manifest(text).load().models
    }
    assert toolchains == {"plain": ["tensorrt", "tensorrt-rtx"], "own": ["tensorrt-rtx", "tensorrt-rtx"]}


def test_the_defaults_of_the_including_file_override_included_defaults(files: Files) -> None:
    files.write("team.yaml", "defaults: {precision: float16, targets: [ada], builder: {tf32: false, refit: true}}\n")
    text = with_defaults("{profiles: [batch], precision: bfloat16, builder: {refit: false}}", "team.yaml")
    model = files.model(text)
    assert (model.precision, model.builder.tf32, model.builder.refit) == ("bfloat16", False, False)
    assert model.places["targets"].file == "team.yaml"


def test_rejects_two_included_defaults_of_one_field(files: Files) -> None:
    files.write("a.yaml", "defaults: {precision: float16, builder: {tf32: false}}\n")
    files.write("b.yaml", "defaults: {«precision: float32, builder: {refit: true, «tf32: true}}\n")
    text = with_defaults("{targets: [ada], profiles: [batch]}", "a.yaml", "b.yaml")
    files.assert_refused(
        text, "two included files set the default `precision`; the other is at a.yaml:1:12", "`builder.tf32`"
    )
    model = files.model(text.replace("{targets", "{precision: bfloat16, builder: {tf32: true}, targets"))
    assert (model.precision, model.builder.tf32, model.builder.refit) == ("bfloat16", True, True)


def test_a_default_of_a_file_that_is_included_twice_is_not_a_conflict(files: Files) -> None:
    files.write("base.yaml", "defaults: {precision: float16}\n")
    files.write("a.yaml", "include: [base.yaml]\n").write("b.yaml", "include: [base.yaml]\n")
    assert files.model(with_defaults("{targets: [ada], profiles: [batch]}", "a.yaml", "b.yaml")).precision == "float16"


def test_a_file_that_is_included_many_times_is_read_once(files: Files) -> None:
    """2**25 chains of includes lead to each of the last two files. Following each chain would take too long."""
    for level in range(25):
        for side in "ab":
            files.write(f"{side}{level}.yaml", f"include: [a{level + 1}.yaml, b{level + 1}.yaml]\n")
    files.write("a25.yaml", "defaults: {precision: float16}\n").write("b25.yaml", "version: 1\n")
    assert (
        files.model(with_defaults("{targets: [ada], profiles: [batch]}", "a0.yaml", "b0.yaml")).precision == "float16"
    )


def test_paths_in_an_included_file_are_relative_to_it(files: Files) -> None:
    files.write("lib/w.pt").write(
        "lib/models/m.yaml", "models:\n" + BASE.partition("models:\n")[2] + "    weights: ../w.pt\n"
    )
    model = files.model(HEAD + "include: [lib/models/m.yaml]\n")
    assert model.weights == "lib/w.pt"
    assert model.source.roots == ("lib/models", "lib", ".")


def test_rejects_source_as_a_default(files: Files) -> None:
    text = with_defaults('{«source: {python: "a:b"}, targets: [ada], profiles: [batch]}')
    files.assert_refused(text, "`source` cannot be a default")


def test_a_wrong_default_is_reported_once_for_many_models(files: Files) -> None:
    text = with_defaults("{targets: [«adaa], profiles: [batch]}")
    problems = files.assert_refused(text + f"  two:\n    {MODEL}\n", "unknown target 'adaa'", "did you mean 'ada'?")
    assert len(problems) == 1
