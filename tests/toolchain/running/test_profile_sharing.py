"""Optimization profiles that contexts can or cannot share. A fake replaces TensorRT 8.6."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.runtime.rigs import Rig, rig
from trtbuild.core.engines.execution import ContextOptions
from trtbuild.errors import EngineError

__all__ = ["rig"]


def test_contexts_of_an_engine_with_profile_sharing_share_a_profile(rig: Rig) -> None:
    part, outputs = rig.part("affine"), []
    for _ in range(3):
        stream = rig.stream()
        for rows, profile in ((2, 0), (9, 1)):
            value, data = rig.values(rows, 4, stream=stream)
            outputs.append((part([value], rig.call(rows, stream=stream, profile=profile))[0], data))
    for output, data in outputs:
        np.testing.assert_array_equal(output.numpy(), data * 2 + 1)
    assert rig.trt.contexts_alive == 6
    assert rig.trt.contexts_made == 7  # one more, to find out whether contexts can share a profile


def test_an_unshared_profile_is_free_after_its_context_is_deleted(rig: Rig) -> None:
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
def test_rejects_an_invalid_profile_number(rig: Rig, profile: int) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("affine"))
        with pytest.raises(EngineError, match=f"has 2 optimization profiles, but not number {profile}"):
            engine.create_context(profile, rig.stream(), ContextOptions())


def test_contexts_always_share_the_profile_of_static_shapes(rig: Rig) -> None:
    with rig.memory.on_device():
        engine = rig.library.load_engine(rig.trt.plan("unshared_static"))
        contexts = [engine.create_context(0, rig.stream(), ContextOptions()) for _ in range(2)]
    assert len(contexts) == rig.trt.contexts_made == 2
