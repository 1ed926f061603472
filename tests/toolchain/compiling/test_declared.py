"""The engine step compares a network's inputs and outputs with those of its partition, and fails if they differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.modules import module_from_text
from tests.fuzz.pipeline import Built, ModuleCase, build
from trtbuild.core.engines.engine_job import DeclaredType, EngineJob
from trtbuild.core.values.codec import decode, encode
from trtbuild.errors import InconsistentShapes
from trtbuild.toolchain.compiling.compiler import compile_engine


@pytest.fixture(scope="module")
def built() -> Built:
    """A module, built up to its engine job. Its input has the shape (d0, 4), and its outputs have (d0, 4) and (d0,)."""
    return build(ModuleCase(module_from_text([], "x0 * 2, x0.sum(1)", 1), [("float32", [(2, 3, 8), 4])]))


def job(built: Built) -> EngineJob:
    (engine_job,) = built.jobs.values()
    return engine_job


def test_a_job_contains_the_tensors_of_its_partition(built: Built) -> None:
    assert job(built).inputs == (("float32", (None, 4)),)
    assert job(built).outputs == (("float32", (None, 4)), ("float32", (None,)))
    assert decode(EngineJob, encode(job(built))) == job(built)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([("float16", (None, 4)), ("float32", (None,))], "o0 is float16 in the partition and FLOAT in the network"),
        ([("float32", (None,)), ("float32", (None,))], r"o0 is \[\?\] in the partition and \[\?, 4\] in the network"),
        ([("float32", (None, 5)), ("float32", (None,))], r"o0 is \[\?, 5\] in the partition and \[\?, 4\]"),
        ([("float32", (None, None)), ("float32", (None,))], r"o0 is \[\?, \?\] in the partition and \[\?, 4\]"),
        ([("float32", (None, 4))], "o1 is in the network and not in the partition"),
        ([("float32", (None, 4)), ("float32", (None,)), ("bool", ())], "o2 is in the partition and not in the network"),
    ],
)
def test_a_difference_fails_the_step(built: Built, outputs: list[DeclaredType], message: str) -> None:
    with pytest.raises(InconsistentShapes, match=message):
        compile_engine(replace(job(built), outputs=tuple(outputs)), built.store.get_bytes)


def test_a_declared_size_may_be_unknown_in_the_network(built: Built) -> None:
    known: tuple[DeclaredType, ...] = (("float32", (3, 4)), ("float32", (3,)))
    assert compile_engine(replace(job(built), outputs=known), built.store.get_bytes).plan.nbytes


def test_a_job_without_declared_tensors_is_not_checked(built: Built) -> None:
    assert compile_engine(replace(job(built), inputs=None, outputs=None), built.store.get_bytes).plan.nbytes
