"""Reads and writes the text of ``trtbuild.lock``. The dataclasses of its contents are in `core.planning.locks`.

Rules
1. The text is JSON with one entry on each line. Each table is sorted by name. So one rebuilt engine changes two lines in a
   review: its own, and that of its package. The text is not TOML, because a plan has to read the file in milliseconds, and
   Python's TOML parser is slower than its JSON parser.
2. The text is read strictly, because people merge lock files by hand. Each error has the line of the wrong entry, if the
   entry can be found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trtbuild.core.planning.graph import STAGES
from trtbuild.core.planning.locks import (
    LOCK_FILE,
    LOCKED_OUTPUTS,
    Lock,
    LockedModel,
    LockedStep,
    LockedTarget,
    stage_of,
)
from trtbuild.core.recipes.record import Output
from trtbuild.core.values.encoding import is_digest
from trtbuild.errors import LockFileError

SCHEMA = "trtbuild.lock/1"

#: An object up to this depth has one line for each entry, and a deeper object is on one line. The document has depth 1.
_MULTI_LINE_DEPTH = 4

_SCHEMA_VERSION = re.compile(r"trtbuild\.lock/([0-9]+)")
_CONFLICT_LINE = re.compile(r"^(<{7}|>{7}|={7}|\|{7})( |$)")
_ENTRY_LINE = re.compile(r'("(?:[^"\\]|\\.)*")\s*:\s*(.*)')

_HINT = "restore the file of one branch (git checkout --theirs trtbuild.lock), then write it again: trtbuild lock"


def to_text(lock: Lock) -> str:
    """The text of the file (rule 1)."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "platform": lock.platform,
        "step_versions": _sorted(lock.step_versions),
        "manifests": _sorted(lock.manifests),
        "models": {name: _model_document(lock.models[name]) for name in sorted(lock.models)},
    }
    return "\n".join(_lines(document, 1)) + "\n"


def _model_document(model: LockedModel) -> dict[str, Any]:
    targets = {name: {"toolchain": entry.toolchain, "version": entry.version} for name, entry in model.targets.items()}
    steps = {
        name: {"key": step.key, **{output: blob.to_json() for output, blob in sorted(step.outputs.items())}}
        for name, step in model.steps.items()
    }
    return {"versions": _sorted(model.versions), "targets": _sorted(targets), "steps": _sorted(steps)}


def _sorted(entries: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(entries.items()))


def _lines(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The lines of `value`, one for each entry. The last line has no comma yet."""
    if not value:
        yield "{}"
        return
    yield "{"
    for number, (name, entry) in enumerate(value.items(), 1):
        lines = (
            list(_lines(entry, depth + 1))
            if isinstance(entry, Mapping) and depth < _MULTI_LINE_DEPTH
            else [_json_text(entry)]
        )
        lines[0] = " " * depth + f"{_json_text(name)}: {lines[0]}"
        lines[-1] += "," if number < len(value) else ""
        yield from lines
    yield " " * (depth - 1) + "}"


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- reading


def from_text(text: str) -> Lock:
    """The lock in a file's text. Raises LockFileError with the line of the problem."""
    for number, line in enumerate(text.splitlines(), 1):
        if _CONFLICT_LINE.match(line):
            raise LockFileError("a merge conflict that was not resolved", file=LOCK_FILE, line=number, hint=_HINT)
    return _Reader(text).lock()


def line_of(text: str, *path: str) -> int:
    """The number of the line on which the entry with this path begins.

    For a missing entry, this is the line of the innermost existing object on its path."""
    places = _lines_by_path(text)
    while path:
        if path in places:
            return places[path][0]
        path = path[:-1]
    return 1


def _lines_by_path(text: str) -> dict[tuple[str, ...], list[int]]:
    """Path → the lines on which entries with this path begin. Entries that are not on their own line may be missing."""
    places: dict[tuple[str, ...], list[int]] = {}
    stack: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        entry = _ENTRY_LINE.match(stripped)
        if entry is not None:
            name = str(json.loads(entry[1]))
            places.setdefault((*stack, name), []).append(number)
            if entry[2] == "{":
                stack.append(name)
        elif stripped.startswith("}") and stack:
            stack.pop()
    return places


class _Reader:
    """Reads the text of a lock file strictly (rule 2). All methods raise LockFileError for an entry that is not valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        #: The names that occur twice in an object.
        self._duplicates: list[str] = []

    def lock(self) -> Lock:
        try:
            document = json.loads(self._text, object_pairs_hook=self._object)
        except json.JSONDecodeError as error:
            reason = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
            raise LockFileError(f"not JSON: {reason}", file=LOCK_FILE, line=error.lineno, hint=_HINT) from None
        except ValueError:  # Python does not convert more than 4,300 digits to an integer
            digits = max(re.findall(r"\d+", self._text), key=len)
            raise LockFileError(
                "not a lock file: a number has too many digits",
                file=LOCK_FILE,
                line=self._text[: self._text.index(digits)].count("\n") + 1,
                hint=_HINT,
            ) from None
        except RecursionError:
            raise LockFileError(
                "not a lock file: it is nested too deeply", file=LOCK_FILE, line=1, hint=_HINT
            ) from None
        if not isinstance(document, dict):
            self._fail((), "not a lock file")
        self._check_schema(document.get("schema"))
        if self._duplicates:
            second_lines = (
                (path[-1], numbers[1])
                for path, numbers in _lines_by_path(self._text).items()
                if path[-1] in self._duplicates and len(numbers) > 1
            )
            name, line = next(second_lines, (self._duplicates[0], 1))
            raise LockFileError(f"there are two entries {name!r}", file=LOCK_FILE, line=line, hint=_HINT)
        self._fields((), document, ("schema", "platform", "step_versions", "manifests", "models"))
        step_versions = self._table(("step_versions",), document)
        for name, number in step_versions.items():
            if type(number) is not int:
                self._fail(("step_versions", name), f"the version of {name!r} is not a whole number")
        manifests = self._strings(("manifests",), document)
        for name, digest in manifests.items():
            self._digest(("manifests", name), digest)
        models = self._table(("models",), document)
        lock = Lock(
            platform=self._string(("platform",), document["platform"]),
            step_versions=step_versions,
            manifests=manifests,
            models={name: self._model(("models", name), entry) for name, entry in models.items()},
            text=self._text,
        )
        self._check_one_result_for_each_key(lock)
        return lock

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The entries of a JSON object. Names that occur twice are added to `_duplicates`."""
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            self._duplicates += [name for name in entries if names.count(name) > 1]
        return entries

    def _check_schema(self, schema: object) -> None:
        if schema == SCHEMA:
            return
        version = _SCHEMA_VERSION.fullmatch(schema) if isinstance(schema, str) else None
        if version is None:
            self._fail(("schema",), f"not a lock file: its schema is {schema!r}, not {SCHEMA!r}")
        raise LockFileError(
            f"a newer version of trtbuild wrote it ({version[0]}); this version reads {SCHEMA}",
            file=LOCK_FILE,
            line=line_of(self._text, "schema"),
            hint="upgrade trtbuild",
        )

    def _model(self, path: tuple[str, ...], entry: object) -> LockedModel:
        fields = self._fields(path, entry, ("versions", "targets", "steps"))
        targets = {}
        for name, target in self._table((*path, "targets"), fields).items():
            place = (*path, "targets", name)
            entries = self._fields(place, target, ("toolchain", "version"))
            if entries["toolchain"] not in ("tensorrt-rtx", "tensorrt"):
                self._fail(place, f"there is no toolchain {entries['toolchain']!r}")
            targets[name] = LockedTarget(entries["toolchain"], self._string(place, entries["version"]))
        steps = {
            name: self._step((*path, "steps", name), step)
            for name, step in self._table((*path, "steps"), fields).items()
        }
        return LockedModel(self._strings((*path, "versions"), fields), targets, steps)

    def _step(self, path: tuple[str, ...], entry: object) -> LockedStep:
        model, name = path[1], path[-1]
        stage = stage_of(name)
        if not name.startswith(f"{model}/") or stage not in STAGES:
            self._fail(path, f"{name!r} is not a step of model {model!r}")
        output_names = LOCKED_OUTPUTS.get(stage, ())
        fields = self._fields(path, entry, ("key", *output_names))
        outputs = {}
        for output_name in output_names:
            output = self._fields(path, fields[output_name], ("sha256", "size"))
            if type(output["size"]) is not int or output["size"] < 0:
                self._fail(path, f"the size of its {output_name} is not a number of bytes")
            outputs[output_name] = Output(self._digest(path, output["sha256"]), output["size"])
        return LockedStep(self._digest(path, fields["key"]), outputs)

    def _check_one_result_for_each_key(self, lock: Lock) -> None:
        for name, step in lock.steps.items():
            if lock.by_key[step.key].outputs != step.outputs:
                path = ("models", name.partition("/")[0], "steps", name)
                self._fail(path, f"{name!r} has the same key as another step, but other digests")

    # -- checks of single values

    def _fields(self, path: tuple[str, ...], value: object, names: Sequence[str]) -> dict[str, Any]:
        """`value`, checked to be an object with exactly the fields `names`."""
        if not isinstance(value, dict):
            self._fail(path, f"{path[-1] if path else LOCK_FILE!r} is not an object")
        for name in value:
            if name not in names:
                self._fail((*path, name), f"there is no field {name!r} here; allowed: {', '.join(names)}")
        for name in names:
            if name not in value:
                self._fail(path, f"the field {name!r} is missing")
        return value

    def _table(self, path: tuple[str, ...], parent: Mapping[str, Any]) -> dict[str, Any]:
        """The object at `path`, which is an entry of `parent`."""
        value = parent[path[-1]]
        if not isinstance(value, dict):
            self._fail(path, f"{path[-1]!r} is not an object")
        return value

    def _strings(self, path: tuple[str, ...], parent: Mapping[str, Any]) -> dict[str, str]:
        """The object at `path`, whose values must be texts."""
        return {name: self._string((*path, name), text) for name, text in self._table(path, parent).items()}

    def _string(self, path: tuple[str, ...], value: object) -> str:
        if not isinstance(value, str) or not value or not value.isprintable():
            self._fail(path, f"the value of {path[-1]!r} is not text")
        return value

    def _digest(self, path: tuple[str, ...], value: object) -> str:
        if not isinstance(value, str) or not is_digest(value):
            self._fail(path, f"in {path[-1]!r}: {value!r} is not a SHA-256 of 64 hex digits")
        return value

    def _fail(self, path: tuple[str, ...], text: str) -> NoReturn:
        raise LockFileError(text, file=LOCK_FILE, line=line_of(self._text, *path), hint=_HINT)
