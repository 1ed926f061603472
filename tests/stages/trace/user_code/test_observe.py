"""States of dependencies (`observe`), dependencies of the manifest (`patterns`), and owners of files (`FileOwners`)."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import get_args

import pytest

from trtbuild.core.recipes.dependency import Dependency, DependencyKind
from trtbuild.stages.trace.discovery import patterns
from trtbuild.stages.trace.discovery.recording import Recorder
from trtbuild.stages.trace.user_code.observe import file_digest, installed_version, observe
from trtbuild.stages.trace.user_code.owners import PACKAGE_PARENT, FileOwner, FileOwners


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path))
    for name in ("a/x.json", "a/b/y.json", "a/b/z.txt", "a/__pycache__/x.pyc", "c.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def observed(kind: str, name: str, project: Path) -> str:
    return observe(Dependency(kind, name), project, file_digest)  # type: ignore[arg-type]


def test_a_file_is_observed_by_its_digest(project: Path) -> None:
    assert observed("file", "c.txt", project) == hashlib.sha256(b"c.txt").hexdigest()
    assert observed("file", str(project / "c.txt"), project) == observed("file", "c.txt", project)
    assert observed("file", "a", project) == "directory"
    assert observed("file", "none", project) == observed("file", "c.txt/none", project) == "absent"


def test_a_listing_has_names_only_and_ignores_derived_files(project: Path) -> None:
    before = observed("listing", "a", project)
    (project / "a/x.json").write_text("other")
    (project / "a/__pycache__").rename(project / "a/.trtbuild")
    assert observed("listing", "a", project) == before
    (project / "a/b").rename(project / "a/bb")
    assert observed("listing", "a", project) != before
    assert observed("listing", "none", project) == "absent"


def test_a_link_is_observed_by_its_target(project: Path) -> None:
    (project / "l").symlink_to("a/b")
    (project / "m").symlink_to(project / "a")
    assert observed("link", "l", project) == "a/b"
    assert observed("link", "m", project) == "./a"
    assert observed("link", "a", project) == observed("link", "none", project) == "absent"


def test_an_import_is_observed_by_the_file_of_the_user_that_it_finds(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one/library.py", "two/library/__init__.py", "two/torch.py", "three/library/part.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    found = {}
    for path in ("", "one", f"{project}/two:one", "three", "three:one"):
        monkeypatch.setenv("PYTHONPATH", path)
        found[path] = observed("import", "library", project)
    assert list(found.values()) == [
        "absent",
        "one/library.py",
        "two/library/__init__.py",
        "three/library",
        "one/library.py",
    ]
    assert observed("import", "torch", project) == observed("import", "json", project) == "absent"  # installed
    monkeypatch.setenv("PYTHONPATH", "two")
    assert observed("import", "torch", project) == "two/torch.py"


def test_an_import_of_an_editable_distribution_is_observed_by_the_file_that_its_finder_finds(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object, target: object) -> ModuleSpec | None:
            return ModuleSpec(name, None, origin=str(project / "a/x.py")) if name == "library" else None

    Finder.__module__ = "__editable___library_1_0_finder"
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert observed("import", "library", project) == "a/x.py"
    assert observed("import", "other_library", project) == "absent"


def test_a_pattern_in_the_project_folder_lists_the_folder(project: Path) -> None:
    recorder = Recorder(project, FileOwners(), {})
    patterns.record_matches("*.txt", project, recorder)
    assert {observation.dependency.part for observation in recorder.observations()} == {"file:c.txt", "listing:."}


def test_a_listing_distinguishes_files_and_directories(project: Path) -> None:
    (project / "d").mkdir()
    (project / "d/one").mkdir()
    before = observed("listing", "d", project)
    (project / "d/one").rmdir()
    (project / "d/one").write_text("")
    assert observed("listing", "d", project) != before


def test_a_listing_distinguishes_directories_and_links_to_directories(project: Path) -> None:
    """``os.walk`` does not follow links."""
    (project / "data" / "deep").mkdir(parents=True)
    seen = observed("listing", "data", project)
    (project / "data" / "deep").rename(project / "elsewhere")
    (project / "data" / "deep").symlink_to("../elsewhere")
    assert observed("listing", "data", project) != seen


def test_the_installation_of_a_module_of_a_namespace_package_is_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = project / "site-packages"
    (site / "a_space").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(site)])
    assert observed("distribution", "a-space-two", project) == "absent"
    (site / "a_space" / "two.py").write_text("")
    assert observed("distribution", "a-space-two", project) == "module"


def test_a_distribution_is_observed_by_its_version(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert observed("distribution", "pytest", project) == pytest.__version__
    assert observed("distribution", "no-such-thing", project) == "absent"
    (project / "My_Dist.x-1.5+local.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    assert installed_version("my-dist-x") == "1.5+local"


@pytest.mark.parametrize(
    "module", ["cv2_like/__init__.py", "cv2_like.py", "cv2_like.abi3.so", "cv2_like.cpython-311-x86_64-linux-gnu.so"]
)
def test_the_installation_of_a_module_whose_distribution_has_another_name_is_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    site = project / "venv" / "site-packages"
    (site / "opencv_like-1.0.dist-info").mkdir(parents=True)
    os.utime(site, ns=(1, 1))
    monkeypatch.setattr(sys, "path", [*sys.path, str(project), str(site)])
    (project / "cv2_like.py").write_text("")  # a file of the user, which has its own dependency
    assert observed("distribution", "cv2-like", project) == "absent"
    (site / module).parent.mkdir(exist_ok=True)
    (site / module).write_text("")
    assert observed("distribution", "cv2-like", project) == "module"
    assert observed("distribution", "opencv-like", project) == "1.0"
    assert installed_version("cv2-like") is None


def test_the_state_of_all_distributions_changes_with_each_installation_and_upgrade(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = project / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(project), str(site)])
    states = [observed("distribution", "*", project)]
    for name in ("plugin-1.0.dist-info", "plugin-2.0.dist-info", "other-1.0.dist-info"):
        for earlier in site.glob(name.split("-")[0] + "-*"):
            earlier.rmdir()
        (site / name).mkdir()
        os.utime(site, ns=(len(states), len(states)))
        states.append(observed("distribution", "*", project))
    assert len(set(states)) == 4
    # directories of the project have no effect: a trace has them on its path, but a plan does not
    (project / "own-1.0.dist-info").mkdir()
    assert observed("distribution", "*", project) == states[-1]


def test_another_build_of_a_local_distribution_is_another_state_though_its_version_is_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = project / "my_local-0.1.dist-info"
    metadata.mkdir()
    monkeypatch.syspath_prepend(str(project))
    dependency = Dependency("distribution", "my-local")

    def state(origin: str, code: str, *, script: str = "a", installer: str = "pip") -> str:
        (metadata / "INSTALLER").write_text(installer + "\n")
        (metadata / "direct_url.json").write_text(origin)
        (metadata / "RECORD").write_text(
            f"../../bin/run,sha256={script},9\nmy_local-0.1.dist-info/RECORD,,\nmy_local/net.py,sha256={code},5\n"
        )
        return observe(dependency, project, file_digest)

    local = '{"dir_info": {}, "url": "file:///src"}'
    first = state(local, "one")
    assert first.startswith("0.1 ") and first != state(local, "two")
    assert first == state(local.replace("src", "other"), "one", script="b")  # the same code, built on another machine
    assert state('{"dir_info": {"editable": true}, "url": "file:///src"}', "one") == "0.1"  # the files are the user's
    assert state(local, "one", installer="conda") == "0.1"
    (metadata / "direct_url.json").unlink()  # so the distribution comes from an index
    assert observe(dependency, project, file_digest) == "0.1"


def test_a_variable_is_observed_by_its_digest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    assert observed("environment", "A_SECRET", project) == hashlib.sha256(b"hunter2").hexdigest()
    monkeypatch.setenv("A_SECRET", "")
    assert observed("environment", "A_SECRET", project) == hashlib.sha256(b"").hexdigest()
    monkeypatch.delenv("A_SECRET")
    assert observed("environment", "A_SECRET", project) == "absent"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
@pytest.mark.parametrize("kind", get_args(DependencyKind))
def test_an_invalid_name_is_observed_as_absent(project: Path, kind: DependencyKind, name: str) -> None:
    """A link of the chain that leads to a trace may come from another machine."""
    assert observe(Dependency(kind, name), project, file_digest) == "absent"


def test_secret_variables_are_observed_as_absent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRTBUILD_REMOTES", "TRTBUILD_REMOTE_TEAM_TOKEN", "TRTBUILD_SIGNING_KEY"):
        monkeypatch.setenv(name, "hunter2")
        assert observed("environment", name, project) == "absent"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("c.txt", ["file:c.txt"]),
        ("none.txt", ["file:none.txt"]),
        ("none/*.txt", ["file:none"]),
        ("a/*.json", ["file:a/x.json", "listing:a"]),
        ("a/**/*.json", ["file:a/b/y.json", "file:a/x.json", "listing:a", "listing:a/b"]),
        ("a", ["file:a/b/y.json", "file:a/b/z.txt", "file:a/x.json", "listing:a", "listing:a/b"]),
        ("a/**", ["file:a/b/y.json", "file:a/b/z.txt", "file:a/x.json", "listing:a", "listing:a/b"]),
        ("a/*/z.txt", ["file:a/b/z.txt", "listing:a"]),
    ],
)
def test_patterns_give_the_matching_files_and_the_listed_folders(
    project: Path, pattern: str, expected: list[str]
) -> None:
    recorder = Recorder(project, FileOwners(), {})
    patterns.record_matches(pattern, project, recorder)
    assert sorted(observation.dependency.part for observation in recorder.observations()) == expected


def test_a_pattern_does_not_follow_a_loop_of_links(project: Path) -> None:
    (project / "a/first").symlink_to(".")
    (project / "a/second").symlink_to("../a")  # two loops give 2^40 paths before the operating system refuses a path
    recorder = Recorder(project, FileOwners(), {})
    patterns.record_matches("a", project, recorder)
    parts = {observation.dependency.part for observation in recorder.observations()}
    files = {"file:a/b/y.json", "file:a/b/z.txt", "file:a/x.json"}
    assert parts - files == {
        *("listing:a", "listing:a/b", "listing:a/first", "listing:a/second"),
        *("link:a/first", "link:a/second"),
    }
    assert files <= parts


def test_a_pattern_records_the_link_through_which_a_loop_leads(project: Path) -> None:
    (project / "a/up").symlink_to("..")
    recorder = Recorder(project, FileOwners(), {})
    patterns.record_matches("a", project, recorder)
    parts = {observation.dependency.part for observation in recorder.observations()}
    assert {"file:a/up/c.txt", "listing:a/up", "listing:a/up/a", "link:a/up"} <= parts
    assert not any("up/a/" in part for part in parts)


def test_a_path_belongs_to_the_user_python_a_distribution_or_trtbuild_or_is_ignored(project: Path) -> None:
    owners = FileOwners()
    assert owners.of(str(project / "c.txt")) == FileOwner("user")
    assert owners.of(os.__file__) == FileOwner("python")
    assert owners.of("<frozen importlib._bootstrap>") == FileOwner("python")
    assert owners.of(pytest.__file__) == FileOwner("distribution", "pytest")
    assert owners.of(os.path.join(PACKAGE_PARENT, "trtbuild", "errors.py")) == FileOwner("trtbuild")
    for name in ("/proc/self/maps", "<string>", str(project / "a/__pycache__/x.pyc"), str(project / ".git/HEAD")):
        assert owners.of(name) == FileOwner("ignored"), name


@pytest.mark.parametrize("root", ["/dev/shm/work", "/run/project", "/data/.git/worktree", "/usr/local/lib/app"])
def test_a_file_of_the_project_belongs_to_the_user_wherever_the_project_is(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtbuild.stages.trace.user_code.owners._python_paths", lambda: ("/usr/local/lib",))
    owners = FileOwners(Path(root))
    assert owners.is_user(f"{root}/models/net.py")
    assert not owners.is_user(f"{root}/models/__pycache__/net.pyc")
    assert not owners.is_user("/usr/local/lib/python3/os.py")


def test_files_on_mounted_disks_and_in_folders_of_shared_memory_belong_to_the_user() -> None:
    owners = FileOwners()
    assert owners.is_user("/run/media/me/disk/weights.pt") and owners.is_user("/dev/shm/data/weights.pt")
    assert not owners.is_user("/dev/shm/torch_12") and not owners.is_user("/run/lock/a")


def test_a_file_in_site_packages_that_no_distribution_lists_belongs_to_the_user(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = project / "site-packages"
    (site / "owned-1.0.dist-info").mkdir(parents=True)
    (site / "owned").mkdir()
    (site / "owned-1.0.dist-info/RECORD").write_text("owned/__init__.py,,\n")
    for name in ("owned/__init__.py", "owned/dropped_in.py", "loose.py"):
        (site / name).write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    owners = FileOwners()
    assert owners.of(str(site / "owned/__init__.py")) == FileOwner("distribution", "owned")
    assert owners.of(str(site / "owned/dropped_in.py")) == owners.of(str(site / "loose.py")) == FileOwner("user")
    assert owners.of(str(site / "absent.py")) == FileOwner("python")
    (site / "RECORD").write_text('owned/__init__.py,,\n"loose.py",,\n')
    (site / "RECORD").replace(site / "owned-1.0.dist-info/RECORD")  # as pip does
    assert FileOwners().of(str(site / "loose.py")) == FileOwner("distribution", "owned")


def test_the_list_of_an_egg_info_directory_has_paths_relative_to_this_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = project / "site-packages"
    (site / "owned-1.0-py3.11.egg-info").mkdir(parents=True)
    (site / "owned").mkdir()
    (site / "owned-1.0-py3.11.egg-info/installed-files.txt").write_text("../owned/__init__.py\nPKG-INFO\n")
    for name in ("owned/__init__.py", "owned/dropped_in.py", "PKG-INFO"):
        (site / name).write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    owners = FileOwners()
    assert owners.of(str(site / "owned/__init__.py")) == FileOwner("distribution", "owned")
    assert owners.of(str(site / "owned-1.0-py3.11.egg-info/PKG-INFO")) == FileOwner("distribution", "owned")
    assert owners.of(str(site / "owned/dropped_in.py")) == owners.of(str(site / "PKG-INFO")) == FileOwner("user")
