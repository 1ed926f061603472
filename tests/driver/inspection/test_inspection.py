"""``trtbuild inspect`` on a real package: ONNX models, errors, and facts that are not in the package's index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.driver.conftest import Small
from trtbuild.core.packages.provenance import Provenance
from trtbuild.driver.inspection import inspect, onnx_files
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import UsageError
from trtbuild.toolchain.libraries.releases import Release


@pytest.fixture(autouse=True)
def cache_of_the_project(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(small.cache))


def test_layers_lead_to_modules_and_operators(small: Small) -> None:
    engine = inspect(Request(small.project), "ranker").engines[0]
    origins = {(layer.module, layer.operator) for layer in engine.layers}
    assert {("hidden", "aten.linear.default"), ("score", "aten.linear.default"), ("", "aten.relu.default")} <= origins
    assert all(layer.module is not None for layer in engine.layers)


def test_each_engine_has_its_trtexec_command(small: Small) -> None:
    engines = inspect(Request(small.project), "dist/ranker").engines
    assert {engine.target for engine in engines} == {"ada", "blackwell"}
    for engine in engines:
        assert engine.trtexec is not None
        arguments = engine.trtexec.arguments
        assert f"--computeCapabilities={'89' if engine.target == 'ada' else '120'}" in arguments
        assert "--profile=0" in arguments and "--maxShapes=i0:16x8" in arguments
        assert engine.size == (small.package / engine.plan).stat().st_size


def test_onnx_models_are_written_with_their_weights(small: Small, tmp_path: Path) -> None:
    document = inspect(Request(small.project), "ranker", onnx=str(tmp_path))
    (path,) = {engine.onnx for engine in document.engines if engine.target == "ada"}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shapes = {entry.name: entry.shape for entry in session.get_inputs()}
    assert len(shapes) == 2 and not [name for name in shapes if name.startswith("w")]  # no weight is an input
    x, scale = np.ones((2, 8), dtype=np.float32), np.array(1.0, dtype=np.float32)
    feeds = {name: x if len(shape) == 2 else scale for name, shape in shapes.items()}
    assert len(session.run(None, feeds)) == 3
    command = document.engines[0].trtexec
    assert command is not None and f"--onnx={path}" in command.arguments


def test_large_weights_are_written_beside_the_onnx_model(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect(Request(small.project), "ranker", onnx=str(tmp_path / "inline"))
    monkeypatch.setattr(onnx_files, "MAX_INLINE_BYTES", 0)  # as for a model with gigabytes of weights
    document = inspect(Request(small.project), "ranker", onnx=str(tmp_path / "beside"))
    (path,) = {Path(engine.onnx or "") for engine in document.engines if engine.target == "ada"}
    data_file = path.with_name(path.name + ".data")
    assert data_file.stat().st_size > path.stat().st_size
    inline = tmp_path / "inline" / path.relative_to(tmp_path / "beside")
    feeds = {
        entry.name: np.ones([2 if isinstance(size, str) else size for size in entry.shape], dtype=np.float32)
        for entry in onnxruntime.InferenceSession(path).get_inputs()
    }
    for result, expected in zip(
        onnxruntime.InferenceSession(path).run(None, feeds),
        onnxruntime.InferenceSession(inline).run(None, feeds),
        strict=True,
    ):
        np.testing.assert_array_equal(result, expected)
    written = data_file.stat()
    inspect(Request(small.project), "ranker", onnx=str(tmp_path / "beside"))
    assert data_file.stat().st_ino == written.st_ino, "equal weights were written again"
    data_file.write_bytes(bytes(written.st_size))
    inspect(Request(small.project), "ranker", onnx=str(tmp_path / "beside"))
    assert data_file.read_bytes() != bytes(written.st_size)


def test_an_old_data_file_that_cannot_be_removed_is_a_usage_error(small: Small, tmp_path: Path) -> None:
    document = inspect(Request(small.project), "ranker", onnx=str(tmp_path))
    (path,) = {engine.onnx for engine in document.engines if engine.target == "ada"}
    Path(f"{path}.data").mkdir()
    with pytest.raises(UsageError, match=r"\.onnx\.data cannot be removed: "):
        inspect(Request(small.project), "ranker", onnx=str(tmp_path))


def test_an_old_onnx_model_that_cannot_be_read_is_a_usage_error(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect(Request(small.project), "ranker", onnx=str(tmp_path))
    read_bytes, refused = Path.read_bytes, []

    def refuse(path: Path) -> bytes:
        if path.is_relative_to(tmp_path):
            refused.append(path)
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"\.onnx cannot be written: Permission denied"):
        inspect(Request(small.project), "ranker", onnx=str(tmp_path))
    assert refused


def test_the_written_onnx_model_is_the_prepared_model(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test replaces `prepare_model`, so that its result can be recognized by the name of the graph."""
    calls: list[tuple[set[str], int]] = []

    def prepare_model(model: bytes, weights: Mapping[str, bytes], release: Release) -> tuple[bytes, dict[str, bytes]]:
        calls.append((set(weights), release.opset))
        return onnx.helper.make_model(onnx.GraphProto(name="prepared")).SerializeToString(), {}

    monkeypatch.setattr("trtbuild.toolchain.compiling.preparing.prepare_model", prepare_model)
    document = inspect(Request(small.project), "ranker", onnx=str(tmp_path))
    assert {onnx.load(engine.onnx).graph.name for engine in document.engines} == {"prepared"}
    assert calls
    for weight_names, opset in calls:
        assert opset == 20
        assert "w0" in weight_names and all(name.startswith("w") for name in weight_names)


def test_a_copied_package_has_layers_but_no_command_and_no_onnx_model(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty cache stands for the cache of another machine."""
    shutil.copytree(small.package, tmp_path / "copied")
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    document = inspect(Request(tmp_path), "copied")
    assert all(engine.trtexec is None and engine.layers for engine in document.engines)
    with pytest.raises(UsageError, match="is not in the cache of this project"):
        inspect(Request(tmp_path), "copied", onnx="onnx")


def test_a_package_without_names_has_no_layers(small: Small, tmp_path: Path) -> None:
    shutil.copytree(small.package, tmp_path / "old")
    (tmp_path / "old/names.json").unlink()
    assert all(engine.layers == [] for engine in inspect(Request(tmp_path), "old").engines)


def test_device_memory_is_unknown_without_a_gpu(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtbuild.toolchain.libraries.devices.device_sms", lambda: ())
    request = Request(small.project)
    assert inspect(request, "ranker").memory is None
    memory = inspect(request, "ranker", memory=True).memory
    assert memory is not None and memory.because == "unknown without a GPU"


def test_verifications_of_another_package_are_void(small: Small, tmp_path: Path) -> None:
    shutil.copytree(small.package, tmp_path / "p")
    (tmp_path / "p/provenance.json").write_text(
        json.dumps({"schema": "trtbuild.provenance/1", "index": "0" * 64, "verified": []})
    )
    assert "another package" in str(inspect(Request(tmp_path), "p").provenance.void)
    assert inspect(Request(small.project), "ranker").provenance == Provenance()


def test_the_json_document_has_index_and_engines(small: Small) -> None:
    document = small.command_line("inspect", "ranker")
    assert document["schema"] == "trtbuild.inspect/1" and document["index"]["model"] == "ranker"
    assert [engine["partition"] for engine in document["engines"]] == ["model", "model"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dist/gone", "no package at .*dist/gone: no such directory"),
        ("./dist", "it has no index.json"),
        ("rankr", "neither a package directory nor a model"),
    ],
)
def test_rejects_names_that_are_not_packages(small: Small, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        inspect(Request(small.project), name)
