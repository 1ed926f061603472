"""Outputs are inside the project, and overlap with no other output or input file. « marks the place of an error."""

from __future__ import annotations

import pytest

from .conftest import BASE, Files

MODEL = BASE.partition("  net:\n")[2]


def two_models(first: str, second: str) -> str:
    """Return a manifest of two models. `first` and `second` are additional fields of the models."""
    return f"{BASE}    {first}\n  second:\n{MODEL}    {second}\n"


def test_outputs_are_sorted_and_normalized(files: Files) -> None:
    model = files.base_model("outputs: {plans: ./b//c/, package: a/../d}")
    assert model.outputs == (("package", "d"), ("plans", "b/c"))
    for empty in ("outputs:", "outputs: {}", "outputs: {package: null}"):
        assert files.base_model(empty).outputs == (("package", "dist/net"),)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (
            "{package: «/dist}",
            "the output '/dist' is outside of the project\n  → write another path inside the project",
        ),
        ("{package: «../dist}", "is outside of the project"),
        ("{package: «a/../../b}", "is outside of the project"),
        ("{package: «.}", "is the project itself"),
        ("{plans: «a/..}", "is the project itself"),
        ("{plans: «.trtbuild/x}", "is inside of trtbuild's own state"),
        ("{package: dist, «plans: dist}", "(plans of model 'net') is also the package of model 'net'"),
        (
            "{package: dist, «plans: dist/plans}",
            "is inside of 'dist', the package of model 'net' (trtbuild.yaml:13:15)",
        ),
        ("{package: dist/r/net, «triton: dist/r/net}", "(triton of model 'net') is also the package of model 'net'"),
        ("{triton: dist, «plans: dist/plans}", "is inside of 'dist', the triton of model 'net'"),
        ("{pt2: «dist/net}", "is a file, and its name does not end in .pt2\n  → write dist/net.pt2"),
        ("{«package: trtbuild.yaml}", "would replace a manifest, 'trtbuild.yaml'"),
    ],
)
def test_rejects_invalid_outputs(files: Files, outputs: str, words: str) -> None:
    files.assert_base_refused(f"outputs: {outputs}", words)


def test_rejects_two_models_with_one_output(files: Files) -> None:
    text = two_models("outputs: {package: dist/x}", "outputs: {«package: dist//x}")
    words = "'dist/x' (package of model 'second') is also the package of model 'net' (trtbuild.yaml:13:15)"
    files.assert_refused(text, words)


def test_models_can_share_a_triton_repository(files: Files) -> None:
    models = files.manifest(two_models("outputs: {triton: dist/r}", "outputs: {triton: ./dist//r}")).load().models
    assert [model.outputs for model in models] == [(("triton", "dist/r"),)] * 2


def test_rejects_a_model_with_the_name_of_anothers_engine_in_a_shared_repository(files: Files) -> None:
    text = two_models("outputs: {triton: dist/r}", "outputs: {«triton: dist/r}").replace("  second:", "  net.p0:")
    words = "'net.p0' may also be an engine of model 'net' (trtbuild.yaml:13:15)\n  → give one of them another name"
    files.assert_refused(text, words)
    separate = two_models("outputs: {triton: dist/r}", "outputs: {triton: dist/s}").replace("  second:", "  net.p0:")
    assert len(files.manifest(separate).load().models) == 2


def test_rejects_a_triton_repository_inside_of_another(files: Files) -> None:
    files.assert_refused(
        two_models("outputs: {triton: dist/r}", "outputs: {«triton: dist/r/s}"), "is inside of 'dist/r', the triton of"
    )


def test_rejects_an_output_inside_of_another_models_output(files: Files) -> None:
    files.assert_refused(
        two_models("outputs: {«package: dist/x/y/z}", "outputs: {plans: dist/x}"), "is inside of 'dist/x', the plans of"
    )
    assert (
        len(files.manifest(two_models("outputs: {package: dist/x}", "outputs: {package: dist/xy}")).load().models) == 2
    )


def test_rejects_an_output_that_is_another_models_default(files: Files) -> None:
    text = two_models("outputs: {plans: p}", "outputs: {package: dist/third}") + f"  «third:\n{MODEL}"
    files.assert_refused(text, "(package of model 'third') is also the package of model 'second'")


def test_rejects_outputs_that_would_replace_input_files(files: Files) -> None:
    files.write("data/w.pt").write("pt/net.pt2").write("lib/t.yaml", "version: 1\n")
    text = two_models(
        "weights: data/w.pt\n    outputs: {«package: data}",
        "outputs: {«package: pt/net.pt2, «plans: lib}",
    ).replace('second:\n    source: {python: "net:build"}', "second:\n    source: {exported_program: pt/net.pt2}")
    text = text.replace("version: 1", "version: 1\ninclude: [lib/t.yaml]")
    files.assert_refused(
        text, "would replace weights, 'data/w.pt'", "replace a source, 'pt/net.pt2'", "manifest, 'lib/t.yaml'"
    )


def test_rejects_outputs_that_would_replace_calibration_data_or_plugins(files: Files) -> None:
    files.write("data/c.safetensors").write("lib/roi.so")
    text = two_models(
        "quantize: {format: int8, calibration: {safetensors: data/c.safetensors}}\n    outputs: {«package: data}",
        'plugins: {library: lib/roi.so, operators: {"mylib::roi": Roi}}\n    outputs: {«package: lib}',
    )
    files.assert_refused(
        text,
        "would replace calibration data, 'data/c.safetensors'",
        "would replace a library of plugins, 'lib/roi.so'",
    )


def test_the_pt2_file_of_each_target_is_compared(files: Files) -> None:
    """A model with the targets ada and blackwell writes ``x.ada.pt2`` and ``x.blackwell.pt2`` for ``pt2: x.pt2``."""
    text = two_models("outputs: {«pt2: x.pt2}", "outputs: {pt2: x.ada.pt2}")
    text = text.replace("  ada: {sm: 89}", "  ada: {sm: 89}\n  blackwell: {sm: 120}")
    text = text.replace("targets: [ada]", "targets: [ada, blackwell]", 1)
    files.assert_refused(text, "the output 'x.ada.pt2' (pt2 of model 'net') is also the pt2 of model 'second'")


def test_the_pt2_files_of_two_models_may_differ_in_the_target_only(files: Files) -> None:
    text = two_models("outputs: {pt2: x.pt2}", "outputs: {pt2: x.blackwell.pt2}")  # neither has the target blackwell
    assert len(files.manifest(text).load().models) == 2


def test_models_of_several_manifests_are_compared(files: Files) -> None:
    files.write("manifests/a.yaml", BASE + "    outputs: {package: dist/x}\n")
    files.write("manifests/b.yaml", BASE.replace("  net:", "  other:") + "    outputs: {«package: dist/x}\n")
    files.assert_refused(None, "is also the package of model 'net' (manifests/a.yaml:13:15)")


def test_outputs_of_invalid_models_are_compared_too(files: Files) -> None:
    files.assert_refused(
        two_models("outputs: {package: x}", "outputs: {«package: x}\n    precision: «half"), "is also the package"
    )
