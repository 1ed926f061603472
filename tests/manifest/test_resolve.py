"""From fields to a complete model: required fields, names that must exist, weights, targets, precisions.

« marks a place that an error must name.
"""

from __future__ import annotations

import platform

import pytest

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.manifest.resolve import this_platform

from .conftest import BASE, Files


def test_every_setting_reaches_the_model(files: Files) -> None:
    model = files.base_model(
        """\
        precision: bfloat16
        partition: {granularity: encoder.*, min_block_size: 2, torch_executed_ops: [aten.mm],
          require_full_compilation: true}
        builder: {optimization_level: 5, workspace: 2KiB, max_aux_streams: 0, tiling_optimization_level: full,
          l2_limit_for_tiling: 1MiB, max_num_tactics: 7, avg_timing_iterations: 2, tf32: false, sparse_weights: true,
          strict_nans: true, refit: true, strip_plan: true, weight_streaming: true, version_compatible: true,
          exclude_lean_runtime: true, distributive_independence: true, direct_io: true, require_user_allocation: true,
          monitor_memory: true, profiling_verbosity: none, tactic_sources: [cudnn, cublas, cudnn]}
        """
    )
    assert model.precision == "bfloat16"
    assert model.partition == PartitionSettings(("encoder.*",), 2, ("aten.mm",), True)
    assert model.builder == BuilderSettings(
        optimization_level=5,
        workspace=2048,
        max_aux_streams=0,
        tiling_optimization_level="full",
        l2_limit_for_tiling=1 << 20,
        max_num_tactics=7,
        avg_timing_iterations=2,
        tf32=False,
        sparse_weights=True,
        strict_nans=True,
        refit=True,
        strip_plan=True,
        weight_streaming=True,
        version_compatible=True,
        exclude_lean_runtime=True,
        distributive_independence=True,
        direct_io=True,
        require_user_allocation=True,
        monitor_memory=True,
        profiling_verbosity="none",
        tactic_sources=("cublas", "cudnn"),
    )
    assert not any(
        getattr(model.builder, name) == getattr(BuilderSettings(), name)
        for name in BuilderSettings.__dataclass_fields__
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '    source: {python: "net:build"}\n',
            "the field `source` of model 'net' is missing\n  → write `source: {python:",
        ),
        ("    inputs: {x: {dtype: float32}}\n", "the field `inputs` of model 'net' is missing"),
        ("    profiles: [batch]\n", "the field `profiles` of model 'net' is missing\n  → name at least one profile"),
        ("    targets: [ada]\n", "the field `targets` of model 'net' is missing\n  → name at least one target"),
    ],
)
def test_rejects_a_model_that_lacks_a_field(files: Files, line: str, words: str) -> None:
    assert line in BASE
    files.assert_refused(BASE.replace(line, "").replace("  net:", "  «net:"), words)


def test_rejects_an_empty_model_and_empty_fields(files: Files) -> None:
    files.assert_refused(BASE.partition("  net:")[0] + "  net:«\n", "`net` must be a mapping, not nothing (null)")
    files.marks.clear()
    text = BASE.replace("    inputs: {x: {dtype: float32}}", "    «inputs: {}")
    files.assert_refused(text, "the field `inputs` of model 'net' is empty")


def test_rejects_unknown_and_repeated_names(files: Files) -> None:
    text = BASE.replace("[batch]", "[«bacth, batch, «batch, «zzz]").replace("[ada]", "[ada, «Adaa, «ada]")
    files.assert_refused(
        text,
        "unknown profile 'bacth'\n  → did you mean 'batch'? the profiles are: batch",
        "profile 'batch' is named twice",
        "unknown profile 'zzz'\n  → the profiles are: batch",
        "unknown target 'Adaa'\n  → did you mean 'ada'? the targets are: ada",
        "target 'ada' is named twice",
    )


def test_names_are_not_reported_as_unknown_if_their_definitions_are_unreadable(files: Files) -> None:
    text = BASE.replace("targets:\n  ada: {sm: 89}", "targets: «[ada]\ninclude: [«gone.yaml]")
    text = text.replace("[batch]", "[batch, other]")
    files.assert_refused(text, "`targets` must be a mapping of names", "no such file")


def test_a_long_list_of_names_is_shortened(files: Files) -> None:
    more = "".join(f"  t{number}: {{sm: 89}}\n" for number in range(100))
    files.assert_refused(
        BASE.replace("[ada]", "[«zzzzzz]").replace("profiles:\n", more + "profiles:\n", 1), "and 85 more"
    )


def test_paths_of_weights_are_relative_to_the_project(files: Files) -> None:
    files.write("manifests/w/a.pt").write("b.pt")
    for path, expected in (("w/a.pt", "manifests/w/a.pt"), ("../b.pt", "b.pt"), (str(files.root / "b.pt"), "b.pt")):
        files.write("manifests/m.yaml", BASE + f"    weights: {path}\n")
        assert files.load().models[0].weights == expected


def test_paths_of_weights_outside_of_the_project_begin_with_dots(files: Files) -> None:
    inside = Files(files.root / "project")
    files.write("data/w.pt")
    assert inside.base_model("weights: ../data/w.pt").weights == "../data/w.pt"
    assert inside.base_model(f"weights: {files.root}/data/w.pt").weights == "../data/w.pt"


def test_rejects_weights_that_cannot_be_read(files: Files) -> None:
    files.write("weights/vit.safetensors")
    files.assert_base_refused("weights: «weights/vit.safetensor", "no such file\n  → did you mean 'vit.safetensors'?")
    files.marks.clear()
    files.assert_base_refused("weights: «weights", "it is a directory")
    files.marks.clear()
    files.assert_base_refused("weights: «~/w.pt", "~ and $VARIABLES are not expanded")
    files.marks.clear()
    files.assert_base_refused(f"weights: «{'a' * 300}", "file name too long")
    files.marks.clear()
    files.assert_base_refused("weights: «trtbuild.yaml/w.pt", "no such file")


def test_the_platform_is_this_machines_by_default(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for system, machine, expected in (
        ("Linux", "x86_64", "linux-x86_64"),
        ("Windows", "AMD64", "windows-x86_64"),
        ("Linux", "aarch64", "linux-aarch64"),
        ("Darwin", "arm64", "darwin-aarch64"),
    ):
        monkeypatch.setattr(platform, "system", lambda value=system: value)
        monkeypatch.setattr(platform, "machine", lambda value=machine: value)
        assert this_platform() == expected
        assert files.model(BASE).targets[0].platform == expected


def test_a_target_has_the_platform_compatibility_and_version_of_the_manifest(files: Files) -> None:
    model = files.model(
        BASE.replace("{sm: 89}", "{sm: 89, platform: windows-x86_64, compatibility: ampere_plus, version: '1.7'}")
    )
    target = model.targets[0]
    assert (target.platform, target.compatibility, target.version) == ("windows-x86_64", "ampere_plus", "1.7")


def test_rejects_float32_on_turing_with_tensorrt_rtx(files: Files) -> None:
    turing = BASE.replace("sm: 89", "sm: 75")
    words = ("FP32 GEMM is not supported", "model 'net' has precision float32", "write `precision: float16`")
    files.assert_refused(turing.replace("[ada]", "[«ada]"), *words)
    files.marks.clear()
    files.assert_refused(turing + "    precision: «float32\n", *words)
    assert files.model(turing + "    precision: float16\n").precision == "float16"
    files.assert_refused(turing + "    precision: «{default: float32}\n", *words)
    files.model(turing + "    precision: {float16: [head]}\n")
    assert files.model(turing + "    toolchain: tensorrt\n").targets[0].toolchain == "tensorrt"
    assert files.model(turing.replace("sm: 75", "sm: 75, toolchain: tensorrt")).targets[0].sm == 75


def test_modules_can_have_other_precisions(files: Files) -> None:
    text = (
        BASE
        + "    precision:\n      default: float16\n      bfloat16: head\n      float32:\n        - a\n        - '*.norm'\n"
    )
    model = files.model(text)
    assert model.precision == "float16"
    assert [(entry.pattern, entry.precision) for entry in model.module_precisions] == [
        ("*.norm", "float32"),
        ("a", "float32"),
        ("head", "bfloat16"),
    ]
    lines = {name: origin.line for name, origin in model.places.items() if name.startswith("precision")}
    assert lines == {"precision": 13, "precision.head": 15, "precision.a": 17, "precision.*.norm": 18}
    only_default = files.model(BASE + "    precision: {default: float16}\n")
    assert only_default.precisions == files.model(BASE + "    precision: float16\n").precisions
