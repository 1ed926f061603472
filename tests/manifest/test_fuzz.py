"""A manifest with random contents is loaded, or rejected with the place of the error."""

from __future__ import annotations

import copy
import random
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.core.values.encoding import encode
from trtbuild.errors import ManifestErrors
from trtbuild.manifest import load

from .conftest import BASE
from .test_project import LONG, SHORT

#: Values that are valid somewhere in a manifest. Mutations put them anywhere.
WORDS = [
    None, True, False, 0, 1, -1, 3, 89, 8.9, 1.5, float("inf"), 2**40, "", "x", "x.0", "x.1", "query.2", "ada", "net:build",
    "1GiB", "float32", "batch", "model", "aten.mm", "..", ".", "/", "trtbuild.yaml", "a\0b", "a\\b", "yes", "é", [], {},
    [1, 8], ["x.0"], ["ada"], {"x": {}}, {"x": None}, {"shape": [1, 8]}, {"min": [0]}, {"at": "x.0"},
    {"python": "a:b"}, [[[]]],
]  # fmt: skip
KEYS = ["version", "include", "defaults", "targets", "profiles", "models", "source", "inputs", "dims", "builder", "x", "at",
        "shape", "min", "partition", "granularity", "outputs", "package", "weights", "[key]", "<<", "yes", ""]  # fmt: skip
#: Short texts, most of which have a meaning in YAML.
FRAGMENTS = [
    "",
    " ",
    "\t",
    "\n",
    ":",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!",
    "'",
    '"',
    "#",
    "0",
    "é",
    "\n  ",
    "? ",
]


def check_load(content: bytes) -> None:
    """Load a manifest. Fails if an error has no place, if a model is incomplete, or if another exception is raised."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "trtbuild.yaml").write_bytes(content)
        try:
            project = load(Path(folder))
        except ManifestErrors as errors:
            for problem in errors.problems:
                assert problem.file
                assert problem.line >= 1
                assert problem.column >= 1
                str(problem).encode()
        else:
            for model in project.models:
                encode(model.source.kwargs)
                assert model.inputs
                assert model.profiles
                assert model.targets


def mutated(document: Any, rng: random.Random) -> Any:
    """Return a copy in which a random value or key is changed, removed or added."""
    document = copy.deepcopy(document)
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        operation = rng.choice(("change", "remove", "add"))
        if operation == "change":
            node[key] = copy.deepcopy(rng.choice(WORDS))
        elif operation == "remove":
            del node[key]
        elif isinstance(node, dict):
            node[rng.choice([*KEYS, *map(str, keys)])] = copy.deepcopy(rng.choice(WORDS))
        else:
            node.insert(key, copy.deepcopy(rng.choice(WORDS)))
        break
    return document


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([BASE, LONG, SHORT]), st.integers(1, 4))
def test_mutated_manifests_are_loaded_or_rejected(seed: int, text: str, count: int) -> None:
    rng = random.Random(seed)
    document = yaml.safe_load(text)
    for _ in range(count):
        document = mutated(document, rng)
    check_load(yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([BASE, LONG, SHORT]), st.integers(1, 4))
def test_mutated_text_is_loaded_or_rejected(seed: int, text: str, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 0, 1, 3, 20]))
        text = text[:start] + rng.choice(FRAGMENTS) + text[end:]
    check_load(text.encode())


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text_is_loaded_or_rejected(content: str | bytes) -> None:
    check_load(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


JSON = st.recursive(
    st.sampled_from(WORDS) | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_mapping_is_loaded_or_rejected(document: dict[str, Any]) -> None:
    check_load(yaml.safe_dump({"version": 1, **document}, sort_keys=False).encode())
