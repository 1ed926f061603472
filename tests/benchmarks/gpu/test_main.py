"""`python -m benchmarks.gpu`: each measurement has a module, and `write` writes all projects."""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.gpu.__main__ import SUBJECTS, main
from benchmarks.gpu.cases import cases

SUBJECTS_FOLDER = Path(__file__).parents[3] / "benchmarks" / "gpu" / "subjects"


def test_each_measurement_has_a_module_and_each_module_a_name() -> None:
    assert sorted(SUBJECTS.values()) == sorted(path.stem for path in SUBJECTS_FOLDER.glob("[!_]*.py"))
    for module in SUBJECTS.values():
        assert callable(importlib.import_module(f"benchmarks.gpu.subjects.{module}").rows)


def test_write_writes_projects_whose_models_have_their_source_files(tmp_path: Path) -> None:
    assert main(["write", str(tmp_path), "--sm", "90", "--version", "8.6.0"]) == 0
    projects = {path.name: {case.name for case in cases(path)} for path in tmp_path.iterdir()}
    assert set(projects) == {"examples", "vit", "resnet", "quantized", "decoders", "plugins", "operators", "lean"}
    assert all(projects.values())
    for case in (case for path in tmp_path.iterdir() for case in cases(path)):
        if case.model.source.kind in ("python", "network"):
            module = case.model.source.target.partition(":")[0].replace(".", "/")
            assert (case.project / Path(case.model.origin.file).parent / f"{module}.py").is_file(), case.name
