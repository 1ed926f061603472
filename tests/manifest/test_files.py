"""Manifests, the files that they include, and files that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtbuild.errors import ManifestErrors, UsageError
from trtbuild.manifest import load

from .conftest import BASE, Files

#: `BASE` in two parts: the text before `models:`, and the text from `models:` on.
PROFILES, MODELS = BASE.partition("models:")[0], "models:" + BASE.partition("models:")[2]


def base_with_model(name: str) -> str:
    return BASE.replace("  net:", f"  {name}:")


def model_names(files: Files, *manifests: str) -> list[str]:
    return [model.name for model in files.load(*manifests).models]


def test_trtbuild_yaml_hides_the_manifests_folder(files: Files) -> None:
    files.write("manifests/b.yaml", base_with_model("b")).write("manifests/a.yaml", base_with_model("a"))
    # ":" is not valid YAML, so reading one of these files would be an error
    files.write("manifests/.hidden.yaml", ":").write("manifests/notes.yml", ":").write("manifests/deep/c.yaml", ":")
    assert model_names(files) == ["a", "b"]
    files.manifest(BASE)
    assert model_names(files) == ["net"]


def test_files_are_named_relative_to_the_project_or_absolutely(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.manifest(":")  # not valid YAML, so reading this file would be an error
    files.write("x/b.yaml", base_with_model("b")).write("x/a.yaml", base_with_model("a"))
    monkeypatch.chdir("/")
    assert model_names(files, "x/b.yaml", "./x/../x/a.yaml", "x/b.yaml") == ["b", "a"]
    project = files.load(str(files.root / "x" / "a.yaml"))
    assert project.files == ("x/a.yaml",)
    assert project.models[0].source.roots == ("x", ".")


def test_reads_a_manifest_outside_of_the_project(files: Files) -> None:
    files.write("out/a.yaml", BASE).write("in/x")
    project = load(files.root / "in", ["../out/a.yaml"])
    assert project.files == ("../out/a.yaml",)
    assert project.models[0].source.roots == ("../out",)


def test_a_folder_whose_name_begins_with_two_dots_is_in_the_project(files: Files) -> None:
    project = files.write("..models/net.yaml", BASE).load("..models/net.yaml")
    assert project.models[0].source.roots == ("..models", ".")


def test_reads_a_project_through_a_link(files: Files, tmp_path: Path) -> None:
    files.write("real/m/a.yaml", BASE)
    (tmp_path / "link").symlink_to("real")
    for path in ("m/a.yaml", str(tmp_path / "link/m/a.yaml"), str(tmp_path / "real/m/a.yaml")):
        assert load(tmp_path / "link", [path]).files == ("m/a.yaml",)


def test_includes_are_relative_to_their_file_and_read_once(files: Files) -> None:
    files.manifest("version: 1\ninclude: [lib/one.yaml, lib/two.yaml]\n" + MODELS)
    files.write("lib/one.yaml", "include: [deep/base.yaml]\n").write("lib/two.yaml", "include: [./deep/base.yaml]\n")
    files.write("lib/deep/base.yaml", PROFILES)
    assert files.load().files == ("lib/deep/base.yaml", "lib/one.yaml", "lib/two.yaml", "trtbuild.yaml")


def test_an_included_file_is_not_a_separate_manifest(files: Files) -> None:
    files.write("manifests/a.yaml", "version: 1\ninclude: [b.yaml]\n" + MODELS)
    files.write("manifests/b.yaml", PROFILES.replace("version: 1\n", ""))
    assert model_names(files) == ["net"]
    assert model_names(files, "manifests/b.yaml", "manifests/a.yaml") == ["net"]


def test_rejects_a_manifest_without_a_version(files: Files) -> None:
    files.assert_refused("«" + BASE.replace("version: 1\n", ""), "the field `version` is missing", "version: 1")


@pytest.mark.parametrize(
    ("version", "words"),
    [("2", "version 2 is newer"), ("0", "the number 0"), ('"1"', "the text '1'"), ("1.0", "the number 1.0"),
     ("true", "not true"), ("", "nothing"), ("[1]", "a list")],
)  # fmt: skip
def test_rejects_other_versions(files: Files, version: str, words: str) -> None:
    text = BASE.replace("version: 1", f"version: «{version}" if version else "version:«")
    files.assert_refused(text, words)


@pytest.mark.parametrize("include", ["", "null", "[]"])
def test_an_unknown_name_is_an_error_if_include_names_no_file(files: Files, include: str) -> None:
    files.manifest(f"include: {include}\n" + BASE.replace("targets: [", "targets: [elsewhere, "))
    with pytest.raises(ManifestErrors, match="unknown target 'elsewhere'"):
        files.load()


def test_rejects_files_that_include_themselves(files: Files) -> None:
    files.manifest("version: 1\ninclude: [a.yaml]\n" + MODELS)
    files.write("a.yaml", "include: [b.yaml]\n" + PROFILES.replace("version: 1\n", ""))
    files.write("b.yaml", "include: [x.yaml, «a.yaml]\n").write("x.yaml", "version: 1\n")
    files.assert_refused(None, "'a.yaml' includes itself: a.yaml → b.yaml → a.yaml")


def test_rejects_a_cycle_through_a_link(files: Files) -> None:
    (files.root / "link.yaml").symlink_to("trtbuild.yaml")
    files.assert_refused(
        "version: 1\ninclude: [«link.yaml]\n" + MODELS + PROFILES.replace("version: 1\n", ""), "includes itself"
    )


def test_rejects_manifests_that_include_each_other(files: Files) -> None:
    files.write("manifests/a.yaml", BASE + "include: [b.yaml]\n")
    files.write("manifests/b.yaml", "version: 1\ninclude: [«a.yaml]\n")
    files.assert_refused(None, "'manifests/a.yaml' includes itself")


def test_rejects_includes_that_are_too_deep(files: Files) -> None:
    files.manifest("version: 1\ninclude: [i0.yaml]\n" + MODELS)
    for number in range(60):
        files.write(f"i{number}.yaml", f"include: [i{number + 1}.yaml]\n")
    with pytest.raises(ManifestErrors, match="more than 32 deep") as caught:
        files.load()
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.column) == ("i30.yaml", 1, 11)


def test_rejects_includes_that_are_missing_repeated_or_not_a_list(files: Files) -> None:
    files.write("shapes.yaml", PROFILES.replace("version: 1\n", ""))
    files.assert_refused(
        "version: 1\ninclude: [«shape.yaml, shapes.yaml, «./shapes.yaml, «nowhere/a.yaml]\n" + MODELS,
        "'shape.yaml' cannot be read: no such file",
        "did you mean 'shapes.yaml'?",
        "'./shapes.yaml' is included twice",
        "there is no directory 'nowhere'",
    )
    files.marks.clear()
    files.assert_refused(
        "version: 1\ninclude: «shapes.yaml\n" + BASE.partition("\n")[2], "`include` must be a list", "[shapes.yaml]"
    )
    files.marks.clear()
    files.assert_refused(
        "version: 1\ninclude: [«3, «'']\n" + BASE.partition("\n")[2], "each entry of `include` must be a path"
    )


def test_rejects_unreadable_files(files: Files) -> None:
    files.marks.add(("trtbuild.yaml", 1, 1))
    (files.root / "trtbuild.yaml").mkdir()
    files.assert_refused(None, "it is a directory")
    (files.root / "trtbuild.yaml").rmdir()
    (files.root / "trtbuild.yaml").symlink_to("trtbuild.yaml")
    files.assert_refused(None, "too many levels of symbolic links")
    (files.root / "trtbuild.yaml").unlink()
    (files.root / "trtbuild.yaml").symlink_to("gone.yaml")
    files.assert_refused(None, "it is a link to nothing")
    (files.root / "trtbuild.yaml").unlink()
    os.mkfifo(files.root / "trtbuild.yaml")
    files.assert_refused(None, "not a regular file")


def test_rejects_a_file_without_permission(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.manifest(BASE).marks.add(("trtbuild.yaml", 1, 1))
    # root can read a file of any mode, and may run the tests
    monkeypatch.setattr("trtbuild.manifest.paths.os.access", lambda path, mode: False)
    files.assert_refused(None, "permission denied")


def test_rejects_a_named_file_that_is_missing(files: Files) -> None:
    files.manifest(BASE)
    with pytest.raises(
        UsageError, match=r"'trtbuild\.yml' cannot be read: no such file\n  → did you mean 'trtbuild\.yaml'"
    ):
        files.load("trtbuild.yml")


def test_rejects_a_missing_directory_and_invalid_paths(files: Files) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        load(files.root / "nowhere")
    for bad in ("", "a\0b"):
        with pytest.raises(UsageError, match="not the path of a file"):
            files.load(bad)


def test_the_error_names_a_manifest_with_a_wrong_name(files: Files) -> None:
    files.write("trtbuild.yml", BASE)
    with pytest.raises(UsageError, match=r"-f trtbuild\.yml"):
        files.load()
