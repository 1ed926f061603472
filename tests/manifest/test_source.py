"""Sources: exactly one kind, an existing model file, and paths that become relative to the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtbuild.core.model.source_kinds import KINDS_WITH_LAYERS, SOURCE_KINDS
from trtbuild.core.model.spec import Source
from trtbuild.errors import ManifestErrors

from .conftest import BASE, Files

SOURCES_PAGE = Path(__file__).parents[2] / "docs" / "sources.md"


def with_source(source: str) -> str:
    return BASE.replace('{python: "net:build"}', source)


def test_a_python_source_has_all_fields_and_paths_relative_to_the_project(files: Files) -> None:
    files.write(
        "manifests/deep/m.yaml",
        with_source(
            '{python: "a.b:Net.make", kwargs: {depth: 12, x: [1, 2.5, null, true, .inf, {k: "v"}]}, '
            "deps: [../data/*.json, ./x.bin, ../../top, /abs/y], env: [B, A], cacheable: false}"
        ),
    )
    (model,) = files.load("manifests/deep/m.yaml").models
    outside = model.source.deps[0]
    assert outside.startswith("../")
    assert outside.endswith("/abs/y")
    assert model.source == Source(
        kind="python",
        target="a.b:Net.make",
        kwargs={"depth": 12, "x": [1, 2.5, None, True, float("inf"), {"k": "v"}]},
        deps=(outside, "manifests/data/*.json", "manifests/deep/x.bin", "top"),
        env=("A", "B"),
        cacheable=False,
        roots=("manifests/deep", "manifests", "."),
    )


def test_the_path_of_an_exported_program_is_relative_to_the_project(files: Files) -> None:
    files.write("manifests/m.yaml", with_source("{exported_program: ../pt/net.pt2}")).write("pt/net.pt2")
    source = files.load().models[0].source
    assert (source.kind, source.target) == ("exported_program", "pt/net.pt2")


@pytest.mark.parametrize(("kind", "graph_kind"), [("onnx", "onnx"), ("torchscript", "program")])
def test_paths_of_other_files_are_relative_to_the_project(files: Files, kind: str, graph_kind: str) -> None:
    files.write("manifests/m.yaml", with_source(f"{{{kind}: ../pt/net.bin}}")).write("pt/net.bin")
    source = files.load().models[0].source
    assert (source.kind, source.target, source.file, source.graph.name) == (
        kind,
        "pt/net.bin",
        "pt/net.bin",
        graph_kind,
    )


def test_a_network_is_a_callable_with_kwargs(files: Files) -> None:
    files.write("manifests/m.yaml", with_source('{network: "nets.det:define", kwargs: {classes: 3}}'))
    source = files.load().models[0].source
    assert (source.kind, source.target, source.kwargs) == ("network", "nets.det:define", {"classes": 3})
    assert (source.file, source.graph.name, source.roots) == (None, "network", ("manifests", "."))


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ("{onnx: pt/net.pt2}", "«precision: {float16: [a]}", "`precision` rewrites a PyTorch model, and model 'net'"),
        ("{onnx: pt/net.pt2}", "«precision: float16", "`precision` rewrites a PyTorch model, and model 'net' comes"),
        ("{onnx: pt/net.pt2}", "«weights: pt/net.pt2", "`weights` are bound to a PyTorch model"),
        ("{onnx: pt/net.pt2}", "partition: {«granularity: [a.*]}", "`granularity` cuts a PyTorch model"),
        ("{onnx: pt/net.pt2}", "partition: {«torch_executed_ops: [aten.add]}", "`torch_executed_ops` stay in PyTorch"),
        ('{network: "a:b"}', "«reference: true", "a package's `reference` runs on a CPU, and model 'net' comes from"),
    ],
)  # fmt: skip
def test_rejects_fields_that_are_for_pytorch_models_only(files: Files, source: str, field: str, words: str) -> None:
    text = with_source(source).replace("    targets: [ada]", f"    targets: [ada]\n    {field}")
    files.write("pt/net.pt2").assert_refused(text, words)


def test_partition_settings_are_allowed_for_a_whole_model(files: Files) -> None:
    field = "partition: {granularity: model, min_block_size: 2, require_full_compilation: true}"
    text = with_source("{onnx: pt/net.pt2}").replace("    targets: [ada]", f"    targets: [ada]\n    {field}")
    files.write("pt/net.pt2").manifest(text).load()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{exported_program: «pt/nett.pt2}", "'pt/nett.pt2' cannot be read: no such file\n  → did you mean 'net.pt2'?"),
        ("{exported_program: «pt}", "it is a directory"),
        ("{exported_program: pt/net.pt2, «kwargs: {a: 1}}", "`kwargs` are for `python` and `network` sources"),
        ("{onnx: «a.onnx}", "the ONNX file 'a.onnx' cannot be read: no such file"),
        ("{torchscript: «a.ts}", "the TorchScript file 'a.ts' cannot be read: no such file"),
        (
            "{onnx: pt/net.pt2, «kwargs: {}}",
            "`kwargs` are for `python` and `network` sources, and the source is `onnx`",
        ),
        ('{network: «"nets/det.py:define"}', 'write "nets.det:define"'),
        (
            '{python: "a:b", «onnx: a.onnx}',
            "`python` and `onnx` cannot be used together in model 'net'\n  → write exactly one of",
        ),
        ('{python: «"models/a.py:build"}', 'write "models.a:build"'),
        ("{python: «3}", "`python` must be `module.path:callable`, not the number 3"),
        ('«"net:build"', "`source` must be a mapping, not the text 'net:build'\n  → write {python: \"net:build\"}"),
        ('{python: "a:b", kwargs: {«a-b: 1}}', "'a-b' cannot be the name of an argument"),
        ('{python: "a:b", kwargs: «[1]}', "`kwargs` must be a mapping, not a list"),
        ('{python: "a:b", kwargs: {a: [1, «.nan]}}', "not a number) is not allowed"),
        ('{python: "a:b", kwargs: {a: {«1: 2}}}', "a key is a name, not the number 1"),
        ('{python: "a:b", deps: «x}', "`deps` must be a list, not the text 'x'\n  → write [x]"),
        ('{python: "a:b", deps: [«3]}', "each entry of `deps` must be a path"),
        ('{python: "a:b", env: [A, «A=1]}', "each entry of `env` must be the name of an environment variable"),
        ('{python: "a:b", cacheable: «no}', "write false"),
        ('{«pyton: "a:b"}', "did you mean 'python'?"),
    ],
)
def test_rejects_invalid_sources(files: Files, source: str, words: str) -> None:
    files.write("pt/net.pt2").assert_refused(with_source(source), words)


def test_rejects_a_source_without_a_kind(files: Files) -> None:
    text = with_source("{deps: [a]}").replace("    source:", "    «source:")
    files.assert_refused(text, "the source has no kind in model 'net'", "exactly one of python, exported_program")


def test_only_kinds_with_layers_are_quantized(files: Files) -> None:
    files.write("net.file")
    rejected_kinds = set()
    for name, kind in SOURCE_KINDS.items():
        target = "net.file" if kind.file else "net:build"
        source = f'{{{name}: "{target}"}}'
        try:
            files.manifest(with_source(source) + "    quantize: {format: int8_weight_only}\n").load()
        except ManifestErrors as errors:
            assert f"the layers of a PyTorch module, and model 'net' comes from `{name}`" in str(errors)
            rejected_kinds.add(name)
    assert rejected_kinds == SOURCE_KINDS.keys() - KINDS_WITH_LAYERS and "python" not in rejected_kinds


def test_each_kind_is_in_the_table_of_the_documentation() -> None:
    page = SOURCES_PAGE.read_text("utf-8")
    assert [name for name in SOURCE_KINDS if f"\n| `{name}` |" not in page] == []
