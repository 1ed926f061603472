"""The text of a lock file is stable, has one entry per line, and is read strictly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.planning.test_locks import KEY, OTHER_DIGEST, PLAN, a_lock
from trtbuild.core.planning.lockfile import SCHEMA, from_text, line_of, to_text
from trtbuild.core.planning.locks import Lock, LockedModel, LockedStep, LockedTarget
from trtbuild.core.recipes.record import Output
from trtbuild.errors import LockFileError

ENGINE = "net/engine/layers.0@ada"


def test_a_written_lock_is_read_back() -> None:
    lock = a_lock()
    assert from_text(to_text(lock)) == lock
    assert to_text(from_text(to_text(lock))) == to_text(lock)


names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="/@"), min_size=1)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)


@given(st.dictionaries(names, st.dictionaries(names, digests, max_size=3), max_size=3))
def test_any_names_are_read_back(models: dict[str, dict[str, str]]) -> None:
    lock = Lock(
        "linux-x86_64",
        step_versions={},
        manifests={},
        models={
            model: LockedModel(
                versions={},
                targets={},
                steps={
                    f"{model}/engine/{part}@x": LockedStep(digest, {"plan": Output(digest, 1)})
                    for part, digest in parts.items()
                },
            )
            for model, parts in models.items()
        },
    )
    assert from_text(to_text(lock)) == lock
    assert from_text(json.dumps(json.loads(to_text(lock)))) == lock


def test_another_engine_adds_one_line_and_changes_no_other_line() -> None:
    before, steps = to_text(a_lock()).splitlines(), dict(a_lock().models["net"].steps)
    steps["net/engine/other@ada"] = LockedStep("1" * 64, {"plan": Output(PLAN, 10)})
    model = replace(a_lock().models["net"], steps=steps)
    after = to_text(replace(a_lock(), models={"net": model})).splitlines()
    (new,) = [line for line in after if line not in before]
    assert "net/engine/other@ada" in new and PLAN in new and "1" * 64 in new
    assert [line for line in before if line not in after] == []


def test_names_are_sorted() -> None:
    lock = a_lock()
    model = lock.models["net"]
    reordered = replace(model, steps=dict(reversed(model.steps.items())))
    assert to_text(replace(lock, models={"z": model, "net": reordered})) == to_text(
        replace(lock, models={"net": model, "z": model})
    )


def error_of(text: str) -> LockFileError:
    with pytest.raises(LockFileError) as caught:
        from_text(text)
    assert caught.value.file == "trtbuild.lock"
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", "=======", ">>>>>>> theirs", "||||||| base"])
def test_the_error_about_a_merge_conflict_says_so_and_has_its_line(marker: str) -> None:
    lines = to_text(a_lock()).splitlines()
    error = error_of("\n".join([*lines[:5], marker, *lines[5:]]))
    assert (error.text, error.line) == ("a merge conflict that was not resolved", 6)
    assert error.hint is not None and "trtbuild lock" in error.hint


def test_a_newer_schema_is_refused_as_newer() -> None:
    error = error_of(to_text(a_lock()).replace(SCHEMA, "trtbuild.lock/2"))
    assert "a newer version of trtbuild wrote it (trtbuild.lock/2)" in error.text
    assert (error.line, error.hint) == (2, "upgrade trtbuild")


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("", "not JSON", 1),
        ('{\n "schema": oops\n}', "not JSON", 2),
        ("[]", "not a lock file", 1),
        ("{}", "its schema is None", 1),
        ('{"schema": "trtbuild.package/1"}', "its schema is 'trtbuild.package/1'", 1),
        ("[" * 100_000, "nested too deeply", 1),
        ('{\n "first": 12,\n "second": -' + "9" * 5_000 + "\n}", "a number has too many digits", 3),
    ],
)
def test_rejects_files_that_are_not_locks(text: str, message: str, line: int) -> None:
    error = error_of(text)
    assert message in error.text and error.line == line


def line_with(text: str, words: str, index: int = 0) -> int:
    return [number for number, line in enumerate(text.splitlines(), 1) if words in line][index]


def test_a_duplicate_entry_is_refused_with_the_second_line() -> None:
    lines = to_text(a_lock()).splitlines()
    number = line_with("\n".join(lines), ENGINE)
    duplicated = "\n".join([*lines[:number], lines[number - 1], *lines[number:]])
    error = error_of(duplicated)
    assert (error.text, error.line) == (f"there are two entries {ENGINE!r}", number + 1)


def test_the_line_of_a_duplicate_entry_is_a_line_of_the_entry_that_is_named() -> None:
    """The file also has a duplicate inside the line of an engine. The parser finds that duplicate first."""
    lines = to_text(a_lock()).splitlines()
    engine, platform = (line_with("\n".join(lines), words) for words in (ENGINE, '"platform"'))
    lines[engine - 1] = lines[engine - 1].replace('{"key":', '{"key": "", "key":', 1)
    lines.insert(platform, lines[platform - 1])
    error = error_of("\n".join(lines))
    assert (error.text, error.line) == ("there are two entries 'platform'", platform + 1)


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    """Return the text of a lock file in which `change` edits an engine, a target or the platform. Other lines stay."""
    document = json.loads(to_text(a_lock()))
    change(document)
    lines = to_text(a_lock()).splitlines()
    for number, line in enumerate(lines):
        if line.startswith(f'    "{ENGINE}"'):
            entry = document["models"]["net"]["steps"].get(ENGINE)
            lines[number] = f'    "{ENGINE}": {json.dumps(entry)},'
        if line.startswith('    "ada"'):
            lines[number] = f'    "ada": {json.dumps(document["models"]["net"]["targets"]["ada"])}'
        if line.startswith(' "platform"'):
            lines[number] = f' "platform": {json.dumps(document["platform"])},'
    return "\n".join(lines)


def change_step(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["models"]["net"]["steps"][ENGINE].update(fields)


@pytest.mark.parametrize(
    ("change", "message", "place"),
    [
        (change_step(key="abc"), "is not a SHA-256", ENGINE),
        (change_step(key=KEY.upper()), "is not a SHA-256", ENGINE),
        (change_step(plan=None), "is not an object", ENGINE),
        (change_step(plan={"sha256": PLAN}), "the field 'size' is missing", ENGINE),
        (change_step(plan={"sha256": PLAN, "size": -1}), "not a number of bytes", ENGINE),
        (change_step(plan={"sha256": PLAN, "size": True}), "not a number of bytes", ENGINE),
        (change_step(plan={"sha256": PLAN, "size": 1.5}), "not a number of bytes", ENGINE),
        (
            change_step(layers={"sha256": PLAN, "size": 1}),
            "there is no field 'layers' here; allowed: key, plan",
            ENGINE,
        ),
        (
            change_step(plan={"sha256": OTHER_DIGEST, "size": 10}),
            "the same key as another step, but other digests",
            ENGINE,
        ),
        (lambda d: d["models"]["net"]["targets"]["ada"].update(toolchain="gcc"), "no toolchain 'gcc'", '"ada"'),
        (lambda d: d["models"]["net"]["targets"]["ada"].update(version=7), "is not text", '"ada"'),
        (lambda d: d.update(platform=""), "the value of 'platform' is not text", "platform"),
    ],
)
def test_rejects_wrong_values_with_their_line(
    change: Callable[[dict[str, Any]], object], message: str, place: str
) -> None:
    text = edited(change)
    error = error_of(text)
    assert message in error.text
    assert error.line == line_with(text, place)


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("platform"), "the field 'platform' is missing"),
        (without("models"), "the field 'models' is missing"),
        (lambda d: d.update(more=1), "there is no field 'more' here"),
        (lambda d: d.update(models=[]), "'models' is not an object"),
        (lambda d: d.update(models={"net": 1}), "'net' is not an object"),
        (lambda d: d["models"]["net"].pop("versions"), "the field 'versions' is missing"),
        (lambda d: d["models"]["net"].update(versions=None), "'versions' is not an object"),
        (lambda d: d.update(step_versions={"engine": "1"}), "is not a whole number"),
        (lambda d: d.update(manifests={"a.yaml": "x"}), "is not a SHA-256"),
        (lambda d: d["models"]["net"]["steps"].update({"vit/trace": {"key": KEY}}), "is not a step of model 'net'"),
        (lambda d: d["models"]["net"]["steps"].update({"net/bake": {"key": KEY}}), "is not a step of model 'net'"),
    ],
)
def test_rejects_wrong_types_and_wrong_fields(change: Callable[[dict[str, Any]], object], message: str) -> None:
    document = json.loads(to_text(a_lock()))
    change(document)
    assert message in error_of(json.dumps(document, indent=1)).text


def test_a_missing_entry_has_the_line_of_the_object_around_it() -> None:
    text = to_text(a_lock())
    assert line_of(text, "models", "net", "targets", "ada") == line_with(text, '"ada"')
    assert line_of(text, "models", "net", "nothing") == line_with(text, '"net"')
    assert line_of(text, "nothing") == line_of("", "models") == 1


def test_a_locked_target_is_read_back() -> None:
    assert from_text(to_text(a_lock())).models["net"].targets == {"ada": LockedTarget("tensorrt-rtx", "1.7.1")}
