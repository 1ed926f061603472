"""The JSON Schema and `load` accept and reject the same manifests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.manifest.conftest import BASE, Files
from tests.manifest.test_project import EXAMPLE, LONG, SHORT
from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.errors import ManifestErrors
from trtbuild.manifest import load, schema
from trtbuild.manifest.format import fields

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(ROOT.glob("manifests/**/*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    json_schema = schema()
    Draft202012Validator.check_schema(json_schema)
    return Draft202012Validator(json_schema)


def messages(validator: Draft202012Validator, text: str) -> list[str]:
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("text", [BASE, EXAMPLE, LONG, SHORT])
def test_good_manifests_are_valid(validator: Draft202012Validator, text: str) -> None:
    assert messages(validator, text) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_manifests_are_valid(validator: Draft202012Validator, path: Path) -> None:
    assert messages(validator, path.read_text()) == []


@pytest.mark.parametrize(
    "more",
    [
        "partition: {granularity: encoder.*}",
        "partition: {granularity: [encoder.*, decoder.*]}",
        "builder: {workspace: 1073741824}",
        "builder: {workspace: null}",
        "builder: {workspace: 0.5 GiB}",
        "dims: {n: x.0, m: [x.1]}",
        "dims: {n: {at: x.0, multiple_of: 2}}",
        "outputs:",
        "weights:",
    ],
)
def test_shorthands_are_valid_and_load(validator: Draft202012Validator, files: Files, more: str) -> None:
    even_min = BASE.replace("min: [1, 8]", "min: [2, 8]")  # for ``multiple_of: 2``
    text = even_min.replace("    profiles:", f"    {more}\n    profiles:")
    assert messages(validator, text) == []
    files.manifest(text).load()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1\n", ""),
        ("version: 1", "version: 2"),
        ("sm: 89", "sm: 88"),
        ("sm: 89", "sm: 8.9"),
        ("{sm: 89}", "{}"),
        ("{sm: 89}", "{sm: 89, version: 8.6}"),
        ("  ada:", "  a/b:"),
        ("min: [1, 8], ", ""),
        ("min: [1, 8]", "shape: [1, 8]"),
        ("min: [1, 8]", "min: [1, -8]"),
        ("float32", "float12"),
        ("profiles: [batch]", "profiles: batch"),
        ("targets: [ada]", "targets: []"),
        ('source: {python: "net:build"}', "precision: float16"),
        ('{python: "net:build"}', '{python: "net"}'),
        ('{python: "net:build"}', '{python: "a:b", onnx: c}'),
        ('{python: "net:build"}', "{exported_program: a.pt2, kwargs: {}}"),
        ("targets: [ada]", "targets: [ada]\n    builder: {workspace: 1GB}"),
        ("targets: [ada]", "targets: [ada]\n    builder: {optimization_level: 6}"),
        ("targets: [ada]", "targets: [ada]\n    partition: {granularity: []}"),
        ("targets: [ada]", "targets: [ada]\n    dims: {n: x}"),
        ("targets: [ada]", "targets: [ada]\n    wieghts: a"),
    ],
)
def test_invalid_manifests_do_not_match_and_do_not_load(
    validator: Draft202012Validator, files: Files, old: str, new: str
) -> None:
    assert old in BASE
    text = BASE.replace(old, new)
    assert messages(validator, text)
    with pytest.raises(ManifestErrors, match=r"trtbuild\.yaml:\d+:\d+: "):
        files.manifest(text).load()


def objects(part: Any) -> list[dict[str, Any]]:
    """All parts of a schema that have properties."""
    own = [part] if isinstance(part, dict) and "properties" in part else []
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return own + [entry for value in inner for entry in objects(value)]


def test_every_field_is_described_for_editors() -> None:
    entries = objects(schema())
    assert len(entries) >= 11
    for entry in entries:
        assert entry["additionalProperties"] is False
        for name, field in entry["properties"].items():
            assert field.get("description"), name


def test_every_call_returns_a_new_schema() -> None:
    first = schema()
    expected = copy.deepcopy(first)
    first["properties"].clear()
    assert schema() == expected


def test_the_manifest_fields_of_settings_have_the_names_and_defaults_of_the_settings() -> None:
    for kind, settings in ((fields.BuilderFields, BuilderSettings()), (fields.PartitionFields, PartitionSettings())):
        defaults = {
            name: tuple(info.default) if isinstance(info.default, list) else info.default
            for name, info in kind.model_fields.items()
        }
        assert defaults == vars(settings)


def test_the_example_manifests_load_with_inputs_profiles_and_targets() -> None:
    project = load(ROOT)  # without the projects in the folders of manifests/
    assert len(project.models) >= 9
    assert {target.sm for model in project.models for target in model.targets} == {86, 89, 120}
