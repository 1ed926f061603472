"""The comparison of TensorRT with onnxruntime: its project, its cases, and its report. No TensorRT runs here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.gpu.cases import cases
from benchmarks.gpu.converted import __main__ as converted
from benchmarks.gpu.converted import recording
from benchmarks.gpu.converted.process import TOLERANCE, difference
from benchmarks.gpu.converted.project import write_rows
from benchmarks.gpu.project import Hardware
from tests.operators.rows import CHUNKS
from trtbuild.store.local.local import LocalStore


def test_every_row_that_is_not_refused_is_a_call_of_a_model(tmp_path: Path) -> None:
    names = {case.name for case in cases(write_rows(tmp_path, Hardware(90, "tensorrt", "8.6.0", tactic_sources=())))}
    source = (tmp_path / "models" / "rows.py").read_text()
    classes: dict[str, Any] = {}
    exec(compile(source, "rows.py", "exec"), classes)
    assert names == {name for name in classes if name.startswith("Rows") and name != "Rows"}
    assert {f"{name}Half" for name in names} & names
    operators = {row.operator for rows in CHUNKS.values() for row in rows}
    assert sum(operator in source for operator in operators) > 0.9 * len(operators)


def double_model() -> bytes:
    """Return an ONNX model whose input x has the shape (n, 2). Its outputs are y = x + x, and i: x as integers."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32)]
    values = [
        helper.make_tensor_value_info(name, dtype, ["n", 2])
        for name, dtype in (("x", TensorProto.FLOAT), ("y", TensorProto.FLOAT), ("i", TensorProto.INT32))
    ]
    graph = helper.make_graph(nodes, "double", values[:1], values[1:])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_a_recorded_case_has_the_results_of_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    output = LocalStore(tmp_path / "cache").put_bytes(double_model())
    monkeypatch.setattr(recording, "_conversions", lambda project: [("double.model", output.sha256)])
    assert recording.record(tmp_path, tmp_path / "cases") == 1
    files = {file.name for file in (tmp_path / "cases").iterdir()}
    sizes = [f"double.model.{size}.{kind}.npz" for size in recording.SIZES for kind in ("normal", "halves")]
    assert files == {"double.model.onnx", *sizes}
    case: Mapping[str, Any] = np.load(tmp_path / "cases" / "double.model.3.halves.npz")
    assert case["in:x"].shape == (3, 2) and not (case["in:x"] * 2 % 1).any()
    assert (case["out:y"] == 2 * case["in:x"]).all() and case["out:i"].dtype == np.int32


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (np.array([1.0, 2.0], np.float32), np.array([1.0, 2.0001], np.float32), ""),
        (np.array([1.0, np.nan, np.inf], np.float32), np.array([1.0, np.nan, np.inf], np.float32), ""),
        (np.array([1.0, 2.0], np.float32), np.array([1.0, 2.001], np.float32), "1 of 2 elements, at [1]"),
        (np.array([1.0, np.inf], np.float32), np.array([1.0, 3e38], np.float32), "1 of 2 elements, at [1]"),
        (np.array([1.0, 0.0], np.float32), np.array([1.0, np.nan], np.float32), "1 of 2 elements, at [1]"),
        (np.array([1, 2], np.int32), np.array([1, 2], np.int64), ""),
        (np.array([1, 3], np.int32), np.array([1, 2], np.int64), "1 of 2 elements, at [1]: [3], not [2]"),
        (np.array([1], np.int32), np.array([[1]], np.int32), "the shape (1,), not (1, 1)"),
    ],
)
def test_a_difference_names_the_elements(actual: Any, expected: Any, text: str) -> None:
    found = difference(actual, expected, TOLERANCE)
    assert found.startswith(text) and bool(found) == bool(text)


def test_a_model_that_ends_its_process_has_a_row_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "tensorrt.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (tmp_path / "double.onnx").write_bytes(double_model())
    assert converted.main(["measure", str(tmp_path), "--json", str(tmp_path / "rows.json")]) == 1
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["model"] == "double" and row["failed"].startswith("status -6")
    assert "0 outputs are equal" in capsys.readouterr().out
