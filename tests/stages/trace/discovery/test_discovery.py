"""A trace is stale after a change of a file that the model reads or imports. Changes of other files have no effect.

One child process reads files in many ways. The tests check its observations, and edit each file of `READ`.
"""

from __future__ import annotations

import hashlib
import os
import sys
import textwrap
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file

from trtbuild.core.model.spec import Source
from trtbuild.core.recipes.dependency import Dependency
from trtbuild.stages.trace.user_code.observe import file_digest, observe

#: Files that the model reads or the manifest declares, each in a different way.
READ = {
    "models/__init__.py": "import of a package",
    "models/net.py": "import of the source's module",
    "models/layers.py": "relative import",
    "models/late.py": "import inside a function",
    "models/importlib_website.py": "import of a module whose name is like those of the import system",
    "models/spec.py": "importlib.util.spec_from_file_location",
    "shared/blocks.py": "import from a second root",
    "outside.py": "sys.path.insert in user code",
    "data/config.json": "json.load(open())",
    "data/text.txt": "Path.read_text",
    "data/low.txt": "os.open",
    "data/array.npy": "numpy.load",
    "data/raw.bin": "numpy.fromfile",
    "data/map.npy": "numpy.load(mmap_mode)",
    "data/memmap.bin": "numpy.memmap",
    "data/mmap.bin": "mmap.mmap",
    "data/tensor.pt": "torch.load",
    "data/lazy.pt": "torch.load(mmap=True)",
    "data/flat.bin": "torch.from_file",
    "data/script.ts": "torch.jit.load",
    "data/graph.pt2": "torch.export.load",
    "data/weights.safetensors": "safetensors.torch.load_file",
    "data/opened.safetensors": "safetensors.safe_open",
    "data/db.sqlite": "sqlite3.connect",
    "data/zipped.zip": "zipfile",
    "data/exists.txt": "os.path.exists",
    "data/isfile.txt": "Path.is_file",
    "data/size.txt": "os.path.getsize",
    "data/linked.txt": "a symlink's target",
    "data/link.txt": "a symlink",
    "data/tested.txt": "Path.is_symlink",
    "data/declared/a.yaml": "deps of the manifest",
    "data/run.py": "runpy.run_path",
    "data/exec.py": "exec(open().read())",
    "data/v1/resolved.txt": "Path.resolve of a symlink",
    "models/registry/one.py": "pkgutil.iter_modules",
}

#: Paths that do not exist, and how the model looks for each of them.
ABSENT = {
    "data/missing.txt": "open, not found",
    "data/nothere.txt": "os.path.exists, not found",
    "data/nofile.txt": "Path.exists, not found",
    "models/layers": "a package that would shadow a module",
    "models/optional.py": "an import that failed",
    "models/optional.abi3.so": "an import that failed, of an extension module with the limited API",
    "models/layers.so": "an extension module that would shadow a module",
    "numbers_of_mine.py": "an import that failed, in the root",
    "shared_name.py": "an import that is found in the second root, after a search in the first root",
}

#: Directories in `data`. trtbuild lists `declared` (for `deps`), and the model's code lists the others.
LISTED = ("listed", "scanned", "globbed", "walked", "walked/deep", "declared", "by name")

#: Files that are not dependencies. The model itself writes `data/written.txt` before it reads the file.
NOT_DEPENDENCIES = ["data/unrelated.txt", "models/unrelated.py", "data/written.txt", "data/declared/b.txt"]

MODEL = """
import importlib, importlib.util, json, mmap, os, pkgutil, runpy, sqlite3, sys, zipfile
from pathlib import Path
import numpy, torch
from .layers import Scale
import blocks, shared_name
try:
    from . import optional
except ImportError:
    pass
try:
    import numbers_of_mine
except ImportError:
    pass

def build(**kwargs):
    here = Path(__file__).resolve().parent.parent
    d = here / "data"
    from . import late, importlib_website
    importlib_website.names(d / "by name")
    spec = importlib.util.spec_from_file_location("loose", here / "models" / "spec.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    sys.path.insert(0, str(here.parent / "elsewhere"))
    import outside
    total = json.load(open(d / "config.json"))["n"] + len((d / "text.txt").read_text())
    fd = os.open(d / "low.txt", os.O_RDONLY); os.read(fd, 1); os.close(fd)
    numpy.load(d / "array.npy"); numpy.fromfile(d / "raw.bin"); numpy.load(d / "map.npy", mmap_mode="r")
    numpy.memmap(d / "memmap.bin", mode="r")
    with open(d / "mmap.bin", "rb") as f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[0]
    torch.load(d / "tensor.pt"); torch.load(d / "lazy.pt", mmap=True)
    torch.from_file(str(d / "flat.bin"), size=4); torch.jit.load(str(d / "script.ts")); torch.export.load(d / "graph.pt2")
    import safetensors.torch
    from safetensors import safe_open
    safetensors.torch.load_file(d / "weights.safetensors")
    with safe_open(str(d / "opened.safetensors"), "pt") as f: f.keys()
    sqlite3.connect(d / "db.sqlite").close()
    zipfile.ZipFile(d / "zipped.zip").namelist()
    os.path.exists(str(d / "exists.txt")); (d / "isfile.txt").is_file(); os.path.getsize(d / "size.txt")
    (d / "link.txt").read_bytes()
    runpy.run_path(str(d / "run.py")); exec(open(d / "exec.py").read())
    try: open(d / "missing.txt")
    except FileNotFoundError: pass
    os.path.exists(d / "nothere.txt"); (d / "nofile.txt").exists()
    os.listdir(d / "listed"); list(os.scandir(d / "scanned")); list((d / "globbed").glob("*.txt"))
    for _ in os.walk(d / "walked"): pass
    ((d / "current").resolve() / "resolved.txt").read_text(); (d / "tested.txt").is_symlink()
    from . import registry
    for module in pkgutil.iter_modules(registry.__path__): importlib.import_module(registry.__name__ + "." + module.name)
    (d / "written.txt").write_text("mine"); (d / "written.txt").read_text()
    os.environ.get("SEEN_GET"); os.getenv("SEEN_GETENV"); "SEEN_IN" in os.environ
    try: os.environ["SEEN_ITEM"]
    except KeyError: pass
    os.environ["OWN_VARIABLE"] = "1"; os.environ["OWN_VARIABLE"]
    os.path.expanduser("~")
    return Scale(total).eval()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: Any) -> Path:
    """A project with the files of `READ` and `NOT_DEPENDENCIES`. `outside.py` is beside the project, in `elsewhere`."""
    root = Path(os.path.realpath(tmp_path_factory.mktemp("discovery"))) / "project"
    for name in (
        "models",
        "shared",
        "data/listed",
        "data/by name",
        "data/scanned",
        "data/globbed",
        "data/walked/deep",
        "data/declared",
        "data/v1",
        "models/registry",
    ):
        (root / name).mkdir(parents=True)
    (root.parent / "elsewhere").mkdir()
    # first, all files have the same text
    for name in [*READ, *NOT_DEPENDENCIES]:
        path = root / name
        if name == "outside.py":
            path = root.parent / "elsewhere" / name
        if name not in ("data/written.txt", "data/link.txt", "data/tested.txt"):
            path.write_text("# text\n")
    # code, and files of other formats
    (root / "models/net.py").write_text(textwrap.dedent(MODEL))
    (root / "models/layers.py").write_text(
        "import torch\nclass Scale(torch.nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.n = n\n    def forward(self, x):\n        return x * self.n\n"
    )
    (root / "models/importlib_website.py").write_text("import os\ndef names(path):\n    return os.listdir(path)\n")
    (root / "shared/shared_name.py").write_text("")
    data = root / "data"
    (data / "config.json").write_text('{"n": 3}')
    numpy.save(data / "array.npy", numpy.ones(4))
    numpy.save(data / "map.npy", numpy.ones(4))
    for name in ("raw.bin", "memmap.bin", "mmap.bin", "flat.bin"):
        (data / name).write_bytes(b"\1" * 64)
    torch.save(torch.ones(2), data / "tensor.pt")
    torch.save(torch.ones(2), data / "lazy.pt")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(data / "script.ts"))
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), data / "graph.pt2")
    save_file({"a": torch.ones(2)}, data / "weights.safetensors")
    save_file({"a": torch.ones(2)}, data / "opened.safetensors")
    (data / "db.sqlite").write_bytes(b"")
    with zipfile.ZipFile(data / "zipped.zip", "w") as archive:
        archive.writestr("a", "b")
    (data / "link.txt").symlink_to("linked.txt")
    (data / "tested.txt").symlink_to("linked.txt")
    (data / "current").symlink_to("v1")
    (root / "models/registry/__init__.py").write_text("")
    return root


@pytest.fixture(scope="module")
def child(project: Path, job_of: Callable[..., Any], in_child: Callable[..., Any], tmp_path_factory: Any) -> Any:
    """The result of a trace of the project in a child process."""
    source = Source(
        "python", "models.net:build", deps=("data/declared/*.yaml",), env=("DECLARED",), roots=(".", "shared")
    )
    environment = {"SEEN_GET": "1", "DECLARED": "yes"}
    result = in_child(job_of({"x": (2, 4)}, source=source), project, tmp_path_factory.mktemp("child"), environment)
    assert result.error is None, result.error
    return result


def dependency_name(project: Path, name: str) -> str:
    """The path of a file of `READ`: absolute if it is outside the project."""
    return str(project.parent / "elsewhere" / name) if name == "outside.py" else name


@pytest.mark.parametrize("name", READ, ids=READ.values())
def test_a_file_that_is_read_is_a_dependency_and_an_edit_changes_its_observation(
    child: Any, project: Path, name: str
) -> None:
    part = f"file:{dependency_name(project, name)}"
    assert part in child.observations, READ[name]
    path = project / dependency_name(project, name)
    seen = child.observations[part]
    assert seen == hashlib.sha256(path.read_bytes()).hexdigest()
    before = path.read_bytes()
    try:
        path.write_bytes(before + b"#")
        assert observe(Dependency.from_part(part), project, file_digest) != seen
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_file_that_was_looked_up_is_a_dependency(child: Any, name: str) -> None:
    assert child.observations.get(f"file:{name}") == "absent", ABSENT[name]


def test_a_standard_module_that_is_loaded_already_is_not_searched_in_the_project(child: Any) -> None:
    assert "file:json.py" not in child.observations


@pytest.mark.parametrize("name", NOT_DEPENDENCIES)
def test_a_file_that_is_not_read_or_that_the_model_has_written_is_not_a_dependency(child: Any, name: str) -> None:
    assert f"file:{name}" not in child.observations


@pytest.mark.parametrize("name", LISTED)
def test_a_directory_that_is_listed_is_a_dependency_that_a_new_file_changes(
    child: Any, project: Path, name: str
) -> None:
    dependency = Dependency("listing", f"data/{name}")
    seen = child.observations[dependency.part]
    assert observe(dependency, project, file_digest) == seen
    (project / "data" / name / "new.txt").write_text("")
    try:
        assert observe(dependency, project, file_digest) != seen
    finally:
        (project / "data" / name / "new.txt").unlink()


def test_no_other_directory_is_a_listing(child: Any) -> None:
    listings = {part for part in child.observations if part.startswith("listing:")}
    assert listings == {
        *(f"listing:data/{name}" for name in LISTED),
        "listing:models/registry",
    }


@pytest.mark.parametrize(("name", "target"), [("current", "v1"), ("tested.txt", "linked.txt")])
def test_a_link_that_was_resolved_or_tested_is_a_dependency(child: Any, project: Path, name: str, target: str) -> None:
    dependency = Dependency("link", f"data/{name}")
    assert child.observations[dependency.part] == observe(dependency, project, file_digest) == target


def test_no_other_link_is_a_dependency(child: Any) -> None:
    links = {part: seen for part, seen in child.observations.items() if part.startswith("link:")}
    assert {part for part, seen in links.items() if seen != "absent"} == {"link:data/current", "link:data/tested.txt"}


def test_a_part_of_a_resolved_path_that_is_no_link_is_a_dependency(child: Any, project: Path) -> None:
    """``Path(__file__).resolve()`` has another result if the file becomes a link."""
    absent = {part for part, seen in child.observations.items() if part.startswith("link:") and seen == "absent"}
    assert {"link:models", "link:models/net.py"} <= absent
    assert observe(Dependency("link", "models/net.py"), project, file_digest) == "absent"


def test_a_new_module_in_a_package_that_pkgutil_lists_changes_the_listing(child: Any, project: Path) -> None:
    dependency = Dependency("listing", "models/registry")
    assert observe(dependency, project, file_digest) == child.observations[dependency.part]
    (project / "models/registry/two.py").write_text("")
    try:
        assert observe(dependency, project, file_digest) != child.observations[dependency.part]
    finally:
        (project / "models/registry/two.py").unlink()


def test_variables_that_are_read_or_declared_are_observed_by_digest(child: Any) -> None:
    seen = {part: value for part, value in child.observations.items() if part.startswith("environment:")}
    assert seen == {
        "environment:SEEN_GET": hashlib.sha256(b"1").hexdigest(),
        "environment:SEEN_GETENV": "absent",
        "environment:SEEN_IN": "absent",
        "environment:SEEN_ITEM": "absent",
        "environment:DECLARED": hashlib.sha256(b"yes").hexdigest(),
    }


SETTERS = """\
import os
import torch
import imported_by_name

def build():
    os.environ["SET_FIRST"] = "mine"; os.environ["SET_FIRST"]
    os.environ.get("READ_FIRST"); os.environ["READ_FIRST"] = "mine"; os.environ["READ_FIRST"]
    os.environ.setdefault("DEFAULTED", "mine"); os.environ["DEFAULTED"]
    os.environ.pop("TAKEN", None); os.environ.get("TAKEN")
    assert os.environ["SET_WITH_TORCH"] == "torch", "this test is about variables that torch sets"
    assert os.environ["CHANGED_WITH_TORCH"] == "torch"
    imported_by_name.default("SET_BY_A_LIBRARY"); os.environ["SET_BY_A_LIBRARY"]
    return torch.nn.ReLU().eval()
"""

#: Code that sets environment variables while torch is imported, as torch does for its caches.
TORCH_SETS = """\
import importlib.util, os, sys

class WhileTorchIsLoaded:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C":
            os.environ["SET_WITH_TORCH"] = os.environ["CHANGED_WITH_TORCH"] = "torch"

sys.meta_path.insert(0, WhileTorchIsLoaded())
assert "torch" not in sys.modules
"""


def test_a_variable_is_observed_with_its_value_at_the_start_of_the_process(
    tmp_path: Path, job_of: Callable[..., Any], in_child: Callable[..., Any]
) -> None:
    root, site, child_folder = (tmp_path / name for name in ("project", "site-packages", "child"))
    for folder in (root, site, child_folder):
        folder.mkdir()
    (root / "net.py").write_text(SETTERS)
    library = "import os\ndef default(name):\n    if name not in os.environ: os.environ[name] = 'library'\n"
    (site / "imported_by_name.py").write_text(library)
    info = site / "imported_by_name-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: imported_by_name\nVersion: 1.0\n")
    (info / "RECORD").write_text("imported_by_name.py,,\n")
    environment = {"READ_FIRST": "started", "TAKEN": "started", "CHANGED_WITH_TORCH": "started"}
    prelude = f"import site\nsite.addsitedir({str(site)!r})\n{TORCH_SETS}"
    job = job_of({"x": (2, 4)}, source=Source("python", "net:build"))
    result = in_child(job, root, child_folder, environment, prelude)
    assert result.error is None and result.uncacheable is None, result
    started = hashlib.sha256(b"started").hexdigest()
    assert {part: value for part, value in result.observations.items() if part.startswith("environment:")} == {
        "environment:READ_FIRST": started,
        "environment:DEFAULTED": "absent",
        "environment:TAKEN": started,
        "environment:SET_WITH_TORCH": "absent",
        "environment:CHANGED_WITH_TORCH": started,
        "environment:SET_BY_A_LIBRARY": "absent",
    }


def test_installed_code_is_observed_as_a_distribution_not_as_files(child: Any) -> None:
    assert child.observations["distribution:torch"] == metadata.version("torch")
    assert child.observations["distribution:numpy"] == numpy.__version__
    assert "distribution:safetensors" in child.observations
    assert "distribution:trtbuild" not in child.observations and "distribution:pytest" not in child.observations
    prefix = os.path.realpath(sys.prefix)
    assert not [part for part in child.order if part.startswith(("file:" + prefix, "file:" + sys.base_prefix))]


def test_only_files_outside_of_the_project_have_absolute_paths(child: Any, project: Path) -> None:
    absolute = [part for part in child.order if ":/" in part]
    elsewhere = str(project.parent / "elsewhere")
    assert [part for part in absolute if not part.partition(":")[2].startswith(elsewhere)] == []


def test_observations_are_in_the_order_of_first_use(child: Any) -> None:
    names = ["models/__init__.py", "models/net.py", "models/layers.py", "shared/blocks.py", "models/late.py"]
    expected = [f"file:{name}" for name in names]
    assert [part for part in child.order if part in expected] == expected


def test_no_bytecode_is_written(child: Any, project: Path) -> None:
    assert not list(project.rglob("__pycache__"))


def test_a_traced_model_is_cacheable(child: Any) -> None:
    assert child.uncacheable is None


def test_planning_observes_the_same_values_as_the_trace(child: Any, project: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SEEN_GET", "1")
    monkeypatch.setenv("DECLARED", "yes")
    for part, seen in child.observations.items():
        assert observe(Dependency.from_part(part), project, file_digest) == seen, part
