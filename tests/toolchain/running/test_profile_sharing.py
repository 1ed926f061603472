"""Optimization profiles that contexts share and that they cannot. On the fake of TensorRT 8.6."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.runtime.rigs import Rig, rig
from trtbuild.core.engines.execution import ContextOptions
from trtbuild.errors import EngineError

__all__ = ["rig"]


def test_contexts_share_a_profile_of_an_engine_that_was_built_for_it(rig: Rig) -> None:
    part, outputs = rig.part("affine"), []
    for _ in range(3):
        stream = rig.stream()
        for rows, profile in ((2, 0), (9, 1)):
            value, data = rig.values(rows, 4, stream=stream)
            outputs.append((part([value], rig.call(rows, stream=stream, profile=profile))[0], data))
    for output, data in outputs:
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    assert rig.trt.contexts_alive == 6
    assert rig.trt.contexts_made == 7  # one more context finds out whether profiles are shared


def test_a_profile_that_is_not_shared_is_free_again_when_its_context_has_gone(rig: Rig) -> None:
    with rig.memory.on_device():
        engine, options = rig.library.load_engine(rig.trt.plan("unshared")), ContextOptions()
        first, second = (engine.create_context(profile, rig.stream(), options) for profile in (0, 1))
        for profile in (0, 1):
            with pytest.raises(EngineError, match=f"profile {profile} cannot be used: another context has it"):
                engine.create_context(profile, rig.stream(), options)
        del second
        engine.create_context(1, rig.stream(), options)
        del first
        gc.collect()
        engine.create_context(0, rig.stream(), options)


@pytest.mark.parametrize("profile", [-1, 2])
def test_an_invalid_profile_number_is_refused(rig: Rig, profile: int) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("affine"))
        with pytest.raises(EngineError, match=f"has 2 optimization profiles, but not number {profile}"):
            engine.create_context(profile, rig.stream(), ContextOptions())


def test_contexts_of_an_engine_of_static_shapes_share_its_profile_always(rig: Rig) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("unshared_static"))
        contexts = [engine.create_context(0, rig.stream(), ContextOptions()) for _ in range(2)]
    assert len(contexts) == rig.trt.contexts_made == 2
