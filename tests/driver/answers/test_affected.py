"""`trtbuild affected` lists the models that depend on files changed since a commit.

Some of these tests check the errors about repositories and revisions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trtbuild.core.planning.graph import ModelPlan, Reason, Step, UserCode
from trtbuild.core.recipes.dependency import ABSENT, DIRECTORY, Dependency, Observation
from trtbuild.driver.answers import affected
from trtbuild.driver.answers.documents import Affected
from trtbuild.driver.project.revision import changes_since
from trtbuild.driver.project.workspace import Workspace
from trtbuild.errors import UsageError


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    process = subprocess.run(
        ["git", *settings, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return process.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a commit")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a project in ``project/``. ``linked.py`` in the project is a link to a file outside the project."""
    root = tmp_path / "repository"
    project = root / "project"
    for name in ("models/a.py", "models/b.py", "data/one.txt", "trtbuild.yaml", "../shared/s.py", "../other.txt"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (project / "linked.py").symlink_to("../shared/s.py")
    git(root, "init", "-q")
    commit(root)
    return root


#: Model → the dependencies of its trace, each with its kind, path and observed state. Model `new` was never traced.
OBSERVED = {
    "a": [("file", "models/a.py", "1"), ("listing", "data", "2"), ("file", "models", DIRECTORY)],
    "b": [
        ("file", "models/b.py", "1"),
        ("file", "models/late.py", ABSENT),
        ("file", "linked.py", "3"),
        ("link", "data/one.txt", ABSENT),
    ],
}


def answer(root: Path, revision: str = "HEAD", **observed: Any) -> Affected:
    """The document of `trtbuild affected` for the models of `OBSERVED` and `observed`, and for the model `new`."""
    plans = {}
    for name, entries in {**OBSERVED, "new": [], **observed}.items():
        verdict, reason_text = ("run", "it was not built") if name == "new" else ("hit", "recorded")
        model: Any = SimpleNamespace(name=name, weights=None, plugins=None, source=SimpleNamespace(file=None))
        plan = ModelPlan(model, cast(Any, None))
        plan.steps[f"{name}/trace"] = Step(
            f"{name}/trace", name, "trace", cast(Any, verdict), Reason("new", reason_text)
        )
        observations = tuple(Observation(Dependency(cast(Any, kind), path), state) for kind, path, state in entries)
        plan.user_code["trace"] = UserCode(cast(Any, None), observations)
        plans[name] = plan
    workspace = SimpleNamespace(
        project=root / "project",
        manifests={"trtbuild.yaml": "0"},
        plans=lambda: plans,
        store=SimpleNamespace(warnings=list),
    )
    return affected.affected(cast(Workspace, workspace), revision)


def changed_models(root: Path, revision: str = "HEAD") -> str:
    """The names of the models whose files have changed, as one text such as ``ab``. Model `new` must be affected."""
    document = answer(root, revision)
    (new,) = [model for model in document.models if model.model == "new"]
    assert new.affected
    return "".join(model.model for model in document.models if model.code == "changed" and model.model != "new")


@pytest.mark.parametrize(
    ("command", "models"),
    [
        ("true", ""),
        ("echo edit >> ../other.txt", ""),
        ("echo edit >> models/a.py", "a"),
        ("echo edit >> ../shared/s.py", "b"),
        ("ln -sf ../other.txt linked.py", "b"),
        ("echo new > models/late.py", "b"),
        ("rm models/b.py", "b"),
        ("git mv models/a.py models/c.py", "a"),
        ("echo new > data/two.txt", "a"),
        ("echo edit >> data/one.txt", ""),
        ("ln -sf ../models/a.py data/one.txt", "b"),
        ("echo edit >> trtbuild.yaml", "ab"),
        ("echo new > trtbuild.lock", "ab"),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
def test_a_change_affects_the_models_that_depend_on_the_changed_file(
    repository: Path, command: str, models: str, committed: bool
) -> None:
    base = git(repository, "rev-parse", "HEAD")
    subprocess.run(command, shell=True, cwd=repository / "project", check=True)
    if committed and command != "true":
        commit(repository)
    assert changed_models(repository, base) == models


def test_a_model_that_was_never_traced_is_affected_and_the_reason_is_given(repository: Path) -> None:
    (entry,) = [model for model in answer(repository).models if model.model == "new"]
    assert (entry.affected, entry.code) == (True, "untraced")
    assert entry.text == "its dependencies are not known, because trace has no result: it was not built"


def test_a_new_directory_of_a_package_is_a_change(repository: Path) -> None:
    package = repository / "project" / "package"
    package.mkdir()
    (package / "module.py").write_text("")
    document = answer(repository, c=[("file", "package", DIRECTORY)])
    assert {model.model: model.code for model in document.models}["c"] == "changed"


def test_a_changed_link_behind_a_link_is_a_change(repository: Path) -> None:
    """Only ``current`` has changed: neither the name in the project, nor the file to which it leads now."""
    project = repository / "project"
    for release in ("v1", "v2"):
        (repository / "releases" / release).mkdir(parents=True)
        (repository / "releases" / release / "w.txt").write_text(release)
    current = repository / "releases" / "current"
    current.symlink_to("v1")
    (project / "w.txt").symlink_to("../releases/current/w.txt")
    (project / "circle").symlink_to("circle")
    commit(repository)
    observed = {"c": [("file", "w.txt", "1"), ("file", "circle", ABSENT)]}
    assert {model.model: model.code for model in answer(repository, **observed).models}["c"] == "unchanged"
    current.unlink()
    current.symlink_to("v2")
    (model,) = [model for model in answer(repository, **observed).models if model.model == "c"]
    assert (model.code, model.changed) == ("changed", ["w.txt"])


def test_a_changed_submodule_counts_as_a_change_of_its_files(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "layer.py").write_text("")
    commit(library)
    git(repository, "submodule", "--quiet", "add", str(library), "project/library")
    commit(repository)
    observed = {"c": [("file", "library/layer.py", "1")]}
    assert {model.model: model.code for model in answer(repository, **observed).models}["c"] == "unchanged"
    (repository / "project" / "library" / "layer.py").write_text("edited")
    models = {model.model: model for model in answer(repository, **observed).models}
    assert models["c"].code == "changed"
    assert models["c"].untracked == []


def test_a_hook_of_a_linked_worktree_finds_the_same_changes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git sets these two variables when it runs a hook in a linked worktree."""
    worktree = tmp_path / "worktree"
    git(repository, "worktree", "add", "-q", str(worktree))
    (worktree / "project/models/a.py").write_text("changed\n")
    folder = git(worktree, "rev-parse", "--absolute-git-dir")
    monkeypatch.setenv("GIT_DIR", folder)
    monkeypatch.setenv("GIT_INDEX_FILE", f"{folder}/index")
    assert changed_models(worktree) == "a"


def test_the_repository_of_the_variable_git_dir_is_used(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere.git"
    (repository / ".git").rename(elsewhere)
    monkeypatch.setenv("GIT_DIR", str(elsewhere))
    git(repository, "config", "core.worktree", str(repository))
    (repository / "project/models/a.py").write_text("changed\n")
    assert changed_models(repository) == "a"


def test_a_file_that_git_does_not_track_is_named(repository: Path) -> None:
    project = repository / "project"
    (project / ".gitignore").write_text("weights.bin\n")
    commit(repository)
    (project / "weights.bin").write_text("")
    document = answer(repository, c=[("file", "weights.bin", "1")])
    assert {model.model: list(model.untracked) for model in document.models}["c"] == ["weights.bin"]


@pytest.mark.parametrize("revision", ["nothing", "-x", "--output=x", "", "HEAD~9"])
def test_an_unknown_revision_is_refused(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError, match="this repository has no such commit") as caught:
        changes_since(repository / "project", revision)
    assert "name a commit" in str(caught.value)
    assert not list(repository.rglob("x")), "git read the revision as the option --output"


def test_a_range_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="is a range"):
        changes_since(repository, "HEAD..HEAD")


def test_a_shallow_clone_is_named_in_the_hint(repository: Path, tmp_path: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    (repository / "other.txt").write_text("edited")
    commit(repository)
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
    with pytest.raises(UsageError, match="--unshallow"):
        changes_since(tmp_path / "shallow", base)


def test_a_directory_without_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not in a git repository"):
        changes_since(tmp_path, "HEAD")


def test_the_document_has_its_schema_and_the_full_commit(repository: Path) -> None:
    from trtbuild.core.values.codec import encode

    document = json.loads(json.dumps(encode(answer(repository))))
    assert document["schema"] == "trtbuild.affected/1"
    assert len(document["since"]) == 40
