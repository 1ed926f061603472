"""Inputs, profiles and dims of a model. « marks the place that an error must name."""

from __future__ import annotations

import pytest

from trtbuild.core.model.spec import Input, NamedDim, Profile, ShapeRange

from .conftest import Files


def manifest(profiles: str, model: str, inputs: str = "{query: , key: {keyword: true}}") -> str:
    return f"""\
version: 1
targets: {{t: {{sm: 89}}}}
profiles:
{profiles}
models:
  net:
    source: {{python: "net:build"}}
    targets: [t]
    inputs: {inputs}
{model}
"""


PROFILE = "  p:\n    key: {shape: [1, 4]}\n    query: {min: [1, 4], opt: [2, 4], max: [4, 4]}"


def test_profiles_have_the_order_of_the_inputs_and_dims_the_order_of_their_axes(files: Files) -> None:
    model = files.model(manifest(PROFILE, "    profiles: [p]\n    dims: {b: [key.1, query.1], a: query.0}"))
    fixed = ShapeRange((1, 4), (1, 4), (1, 4))
    assert model.inputs == (Input("query"), Input("key", keyword=True))
    assert model.profiles == (Profile("p", (("query", ShapeRange((1, 4), (2, 4), (4, 4))), ("key", fixed))),)
    assert model.dims == (NamedDim("a", (("query", 0),)), NamedDim("b", (("query", 1), ("key", 1))))


def test_accepts_a_scalar_input(files: Files) -> None:
    model = files.model(manifest("  p: {s: {shape: []}}", "    profiles: [p]", "{s: {dtype: bool}}"))
    assert model.profiles[0].shapes == (("s", ShapeRange((), (), ())),)


@pytest.mark.parametrize(
    ("profiles", "model", "words"),
    [
        ("  p: {query: {shape: [1]}}", "    profiles: [«p]", "profile 'p' has no shape for input 'key' of model 'net'"),
        (
            "  p: {query: {shape: [1]}, key: {shape: [1]}, «kye: {shape: [1]}}",
            "    profiles: [p]",
            "profile 'p' has a shape for 'kye', which is not an input of model 'net'\n  → did you mean 'key'?",
        ),
        ("  p:«", "    profiles: [p]", "`p` must be a mapping, not nothing (null)"),
        (
            "  p:\n    key: {shape: [1, 4]}\n    query: {min: [1, 4], opt: [1, «5], max: [4, 4]}",
            "    profiles: [p]",
            "query.1: min 4, opt 5, max 4 are not in order\n  → min ≤ opt ≤ max",
        ),
        (
            "  p:\n    key: {shape: [1, 4]}\n    query: {min: [5, 4], opt: [5, 4], max: [«4, 4]}",
            "    profiles: [p]",
            "query.0: min 5, opt 5, max 4 are not in order",
        ),
        (
            "  p:\n    key: {shape: [1, 4]}\n    query: {min: [«0, 4], opt: [1, 4], max: [4, 4]}",
            "    profiles: [p]",
            "query.0: a dynamic dim cannot have min 0\n  → the smallest min is 1",
        ),
        (
            "  p:\n    key: {shape: [1, 4]}\n    query: {min: [1, 4], opt: «[1], max: [4, 4]}",
            "    profiles: [p]",
            "min, opt and max of 'query' have 2, 1 and 2 axes",
        ),
        (
            PROFILE + "\n  q:\n    query: {shape: [1, 4]}\n    key: {shape: «[1, 4, 1]}",
            "    profiles: [p, q]",
            "'key' has rank 3 here and 2 in profile 'p'",
        ),
        (
            PROFILE,
            "    profiles: [p]\n    dims: {n: {at: [query.0, «key.2]}}",
            "dim 'n' is at key.2, but 'key' has 2 axes\n  → axes are 0 to 1",
        ),
        (
            PROFILE,
            "    profiles: [p]\n    dims: {n: [query.0, «kye.0]}",
            "no input 'kye' for dim 'n'\n  → did you mean 'key'?",
        ),
        (PROFILE, "    profiles: [p]\n    dims: {n: «kye.0}", "there is no input 'kye'"),
        (PROFILE, "    profiles: [p]\n    dims: {n: [query.0, «query.0]}", "query.0 is already in dim 'n'"),
        (
            PROFILE,
            "    profiles: [p]\n    dims: {n: query.0, m: [«query.0]}",
            "query.0 is already in dim 'n'",
        ),
        (
            "  p:\n    key: {min: [1, 4], opt: [«3, 4], max: [4, 4]}\n    query: {min: [1, 4], opt: [2, 4], max: [4, 4]}",
            "    profiles: [p]\n    dims: {n: [query.0, key.0]}",
            "dim 'n' has different ranges: query.0 is 1..2..4, key.0 is 1..3..4 (min..opt..max)",
        ),
        (
            "  p:\n    key: {shape: [«1, 4]}\n    query: {shape: [2, 4]}",
            "    profiles: [p]\n    dims: {n: [query.0, key.0]}",
            "dim 'n' has different ranges: query.0 is 2..2..2, key.0 is 1..1..1",
        ),
        (
            "  p:\n    key: {shape: [32, 4]}\n    query: {min: [32, 4], opt: [«40, 4], max: [64, 4]}",
            "    profiles: [p]\n    dims: {n: {at: query.0, multiple_of: 32}}",
            "query.0 is dim 'n', a multiple of 32, but has min 32, opt 40, max 64\n  → write 32 or 64 instead of 40",
        ),
    ],
)  # fmt: skip
def test_rejects_invalid_shapes(files: Files, profiles: str, model: str, words: str) -> None:
    files.assert_refused(manifest(profiles, model), words)


def test_rejects_size_0_if_another_profile_makes_the_dim_dynamic(files: Files) -> None:
    profiles = "  a: {x: {shape: [«0]}}\n  b: {x: {shape: [4]}}"
    files.assert_refused(manifest(profiles, "    profiles: [b, a]", "{x: }"), "a dynamic dim cannot have min 0")
    model = files.model(manifest(profiles.replace("«", ""), "    profiles: [a]", "{x: }"))
    assert model.profiles[0].shapes[0][1].min == (0,)


def test_an_invalid_profile_is_reported_once_for_any_number_of_models(files: Files) -> None:
    text = (
        manifest("  p: {x: {min: [«5], opt: [4], max: [8]}}", "    profiles: [p]", "{x: }")
        + '  two: {source: {python: "a:b"}, targets: [t], inputs: {x: }, profiles: [p]}\n'
    )
    assert len(files.assert_refused(text)) == 1
    files.marks.clear()
    unused = text.replace("profiles: [p]", "profiles: [q]").replace("models:", "  q: {x: {shape: [1]}}\nmodels:")
    assert len(files.assert_refused(unused, "not in order")) == 1
