"""The wrappers of functions whose C++ or Rust code uses files, and of environment variables."""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch

from trtbuild.stages.trace.discovery import hooks
from trtbuild.stages.trace.discovery.mappings import mapped_files
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.discovery.wrappers import ReaderWrappers
from trtbuild.stages.trace.user_code.owners import FileOwners


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder whose wrappers are installed. The project is the directory `tmp_path`."""
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.install()
    yield recorder
    wrappers.remove()


@pytest.mark.parametrize(
    ("save", "load"),
    [
        (lambda path: torch.save({"a": torch.ones(1)}, path), torch.load),
        (lambda path: safetensors.torch.save_file({"a": torch.ones(1)}, path), safetensors.torch.load_file),
    ],
)
def test_a_file_that_torch_or_safetensors_writes_counts_as_written_by_the_model(
    recorder: Recorder, tmp_path: Path, save: Callable[[Any], None], load: Callable[[Any], Any]
) -> None:
    path = tmp_path / "weights"
    assert not os.path.exists(path)  # noqa: PTH110  # some models create their weights if the file is missing
    recorder.record_file(path)
    save(path)
    load(path)
    assert recorder.observations() == ()
    assert recorder.storage_refusals == ["the model's code writes to weights, which it read before"]


@pytest.mark.parametrize("declares_files", [False, True])
@pytest.mark.parametrize(
    "time",
    [
        os.path.getmtime,
        lambda path: path.stat().st_mtime,
        lambda path: path.lstat().st_ctime_ns,
        lambda path: _time_of_open_file(path),
    ],
)
def test_a_model_that_chooses_its_newest_file_is_uncacheable_unless_its_files_are_declared(
    recorder: Recorder, tmp_path: Path, time: Callable[[Path], float], declares_files: bool
) -> None:
    recorder.declares_files = declares_files
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"a")
    assert (tmp_path / "a.pt").stat().st_size == os.path.getsize(tmp_path / "b.pt") == 1  # noqa: PTH202
    assert not recorder.storage_refusals
    max(tmp_path.glob("*.pt"), key=time)
    expected = [] if declares_files else [r"^\S+test_wrappers\.py:\d+ reads the time of a file"]
    assert len(recorder.storage_refusals) == len(expected)
    assert all(map(re.match, expected, recorder.storage_refusals))


def _time_of_open_file(path: Path) -> float:
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime


def test_a_variable_that_a_settings_library_reads_for_user_code_is_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_WIDTH", "8")
    omegaconf = pytest.importorskip("omegaconf")
    assert omegaconf.OmegaConf.create({"width": "${oc.env:MODEL_WIDTH}"}).width == "8"
    assert "environment:MODEL_WIDTH" in [seen.dependency.part for seen in recorder.observations()]
    assert not recorder.storage_refusals


@pytest.mark.parametrize(
    "read",
    [os.environ.get, os.getenv, lambda name: os.environ[name], lambda name: name in os.environ],
    ids=["get", "getenv", "item", "in"],
)
def test_a_variable_of_the_machine_is_recorded_if_user_code_itself_reads_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/data")
    os.path.expanduser("~")  # noqa: PTH111
    assert not recorder.observations()  # only the standard library has read the variable
    read("XDG_CACHE_HOME")
    assert [seen.dependency.part for seen in recorder.observations()] == ["environment:XDG_CACHE_HOME"]


@pytest.mark.parametrize("declares_variables", [False, True])
def test_a_settings_library_that_reads_all_variables_needs_declared_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declares_variables: bool
) -> None:
    class Settings(pytest.importorskip("pydantic_settings").BaseSettings):  # type: ignore[misc]
        model_width: int = 4

    monkeypatch.setenv("MODEL_WIDTH", "8")
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    wrappers = ReaderWrappers(recorder, declares_variables=declares_variables)
    wrappers.install()
    try:
        assert Settings().model_width == 8
    finally:
        wrappers.remove()
    assert ["in `env` of the source" in text for text in recorder.storage_refusals] == [True] * (not declares_variables)
    assert "environment:MODEL_WIDTH" not in [seen.dependency.part for seen in recorder.observations()]


@pytest.mark.parametrize(
    "search",
    [
        lambda: importlib.metadata.entry_points(group="my.models"),
        lambda: list(importlib.metadata.distributions()),
        importlib.metadata.packages_distributions,
    ],
    ids=["entry_points", "distributions", "packages_distributions"],
)
def test_user_code_that_searches_all_distributions_depends_on_all_of_them(
    recorder: Recorder, search: Callable[[], object]
) -> None:
    importlib.metadata.version("numpy")
    assert "distribution:*" not in [seen.dependency.part for seen in recorder.observations()]
    search()
    assert "distribution:*" in [seen.dependency.part for seen in recorder.observations()]


@pytest.mark.parametrize(
    ("module", "function"), [("torchvision.io", "read_file"), ("torchvision.io.image", "read_file")]
)
def test_an_image_that_torchvision_reads_is_a_dependency(tmp_path: Path, module: str, function: str) -> None:
    (tmp_path / "a.png").write_bytes(b"a")
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    torchvision = ModuleType(module)
    read_paths: list[str] = []
    setattr(torchvision, function, read_paths.append)
    wrappers = ReaderWrappers(recorder)
    wrappers.wrap_module(torchvision)
    getattr(torchvision, function)(str(tmp_path / "a.png"))
    wrappers.remove()
    assert len(read_paths) == 1
    assert [seen.dependency.part for seen in recorder.observations()] == ["file:a.png"]


def test_a_model_that_onnxruntime_reads_is_a_dependency(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    (tmp_path / "a.onnx").write_bytes(b"not a model")
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.wrap_module(onnxruntime)
    with pytest.raises(Exception, match=r"a\.onnx"):
        onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    wrappers.remove()
    assert [seen.dependency.part for seen in recorder.observations()] == ["file:a.onnx"]


def test_the_external_data_of_a_model_that_onnx_reads_is_a_dependency(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    initializers = [onnx.numpy_helper.from_array(numpy.ones(4, numpy.float32), name) for name in ("a", "b")]
    model = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], [], initializers))
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.wrap_module(onnx)
    onnx.load(str(tmp_path / "net.onnx"))
    wrappers.remove()
    assert [seen.dependency.part for seen in recorder.observations()] == ["file:net.onnx", "file:a", "file:b"]


def test_the_vocabularies_that_tokenizers_reads_are_dependencies(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    for name, text in (("vocab.json", '{"a": 0}'), ("merges.txt", ""), ("words.json", '{"a": 0}'), ("pieces.txt", "a")):
        (tmp_path / name).write_text(text)
    recorder = Recorder(Path(os.path.realpath(tmp_path)), FileOwners(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.wrap_module(tokenizers)
    tokenizers.models.BPE.from_file(str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    tokenizers.models.WordLevel.read_file(str(tmp_path / "words.json"))
    tokenizers.models.WordPiece.from_file(str(tmp_path / "pieces.txt"))
    wrappers.remove()
    found = [seen.dependency.part for seen in recorder.observations()]
    assert sorted(found) == ["file:merges.txt", "file:pieces.txt", "file:vocab.json", "file:words.json"]


def test_the_shared_memory_of_a_database_is_not_a_mapped_file(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for name in ("model.db-shm", "weights.bin"):
            (tmp_path / name).write_bytes(b"a" * 4096)
            file = stack.enter_context((tmp_path / name).open("r+b"))
            stack.enter_context(mmap.mmap(file.fileno(), 0))
        mapped = {Path(path).name for path in mapped_files()}
    assert "weights.bin" in mapped and "model.db-shm" not in mapped


def test_the_backport_of_importlib_metadata_is_recorded(tmp_path: Path) -> None:
    backport = pytest.importorskip("importlib_metadata")
    recorder = Recorder(tmp_path, FileOwners(), {})
    wrappers = ReaderWrappers(recorder)
    wrappers.wrap_backport(backport)
    backport.version("numpy")
    assert [seen.dependency.part for seen in recorder.observations()] == ["distribution:numpy"]
    backport.entry_points(group="my.models")
    wrappers.remove()
    assert "distribution:*" in [seen.dependency.part for seen in recorder.observations()]


def test_functions_that_a_thread_calls_for_user_code_are_recorded(recorder: Recorder, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside of the project"
    with ThreadPoolExecutor() as pool:
        list(pool.map(os.environ.get, ["A_VARIABLE"]))
        list(pool.map(os.path.exists, [str(outside)]))
    found = {seen.dependency.part for seen in recorder.observations()}
    assert found == {"environment:A_VARIABLE", f"file:{os.path.realpath(outside)}"}


def test_the_deletion_of_a_variable_reads_it(recorder: Recorder) -> None:
    with contextlib.suppress(KeyError):
        del os.environ["A_MISSING_VARIABLE"]
    assert [seen.dependency.part for seen in recorder.observations()] == ["environment:A_MISSING_VARIABLE"]


def test_a_file_is_recorded_by_the_directory_of_its_descriptor(recorder: Recorder, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("opened", "tested"):
        (folder / name).write_text("a")
    for _, _, _, descriptor in os.fwalk(folder):
        os.close(os.open("opened", os.O_RDONLY, dir_fd=descriptor))
        os.access("tested", os.R_OK, dir_fd=descriptor)
    found = [seen.dependency.part for seen in recorder.observations()]
    assert "file:data/opened" in found and "file:data/tested" in found
    with pytest.raises(OSError, match="descriptor"):
        os.open("opened", os.O_RDONLY, dir_fd=100_000)


@pytest.mark.parametrize(
    ("attach", "is_refused"), [(["attach 'data/b.db' as b"], False), (["attach ? as b", ["data/b.db"]], True)], ids=str
)
def test_an_attached_database_is_a_dependency(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attach: list[Any], is_refused: bool
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    hooks.set_recorder(recorder)
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(*attach)
    finally:
        hooks.set_recorder(None)
    assert ("file:data/b.db" in [seen.dependency.part for seen in recorder.observations()]) is not is_refused
    assert ["attaches a database" in text for text in recorder.storage_refusals] == [True] * is_refused


@pytest.mark.parametrize("read", [list, repr, str, lambda variables: variables.copy()])
def test_user_code_that_reads_all_variables_is_uncacheable(recorder: Recorder, read: Callable[[Any], object]) -> None:
    read(os.environ)
    assert ["reads all environment variables" in text for text in recorder.storage_refusals] == [True]


def test_a_file_that_a_settings_library_looks_for_above_the_project_is_recorded(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("dotenv").find_dotenv(usecwd=True)
    found = [seen.dependency.part for seen in recorder.observations()]
    assert "file:.env" in found and f"file:{os.path.realpath(tmp_path.parent)}/.env" in found
