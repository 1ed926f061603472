"""The versions in a plan come from the lock, otherwise from the manifest, otherwise from the installed packages.

If the installed versions differ from the lock, this machine cannot run the steps that need the locked versions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.conftest import HOPPER, VERSIONS, a_model
from tests.core.planning.test_locks import a_lock
from tests.core.planning.test_parsers_elsewhere import GPU, NET, NO_GPU, RTX, Machines
from trtbuild.core.model.spec import Model, Origin
from trtbuild.core.planning.locks import Lock, LockedTarget
from trtbuild.core.planning.lookups import Facts, LockedSteps
from trtbuild.core.recipes.lookup_recipes import stand_in_of
from trtbuild.driver.project import environment
from trtbuild.errors import EnvironmentFault, LockFileError, ToolchainMissing
from trtbuild.toolchain.libraries import table

TORCH = {"torch": "2.13.0", "onnx": "1.20.0", "onnx-ir": "0.1.0", "onnxscript": "0.6.0"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed versions. A test may change them."""
    versions = {**TORCH, "tensorrt-rtx": "1.7.1"}
    monkeypatch.setattr(environment, "installed_version", versions.get)
    monkeypatch.setattr(table.distributions, "installed_version", versions.get)
    return versions


def locked_to(**versions: str) -> Lock:
    model = replace(a_lock().models["net"], versions={**(environment.torch_versions() or {}), **versions})
    return replace(a_lock(), models={"net": model})


def test_without_a_lock_each_version_is_the_pinned_or_the_installed_one(installed: dict[str, str]) -> None:
    pinned = replace(HOPPER, version="8.6.0")
    model = a_model(targets=(*a_model().targets, pinned))
    facts = environment.gather_facts([model])["net"]
    assert [facts.toolchains[target].version for target in model.targets] == ["1.7.1", "8.6.0"]
    assert facts.versions is not None and facts.versions["torch"] == "2.13.0"
    assert [facts.toolchains[target].narrows_int64 for target in model.targets] == [False, True]
    assert facts.locked_steps is None


def test_the_lock_overrides_installed_versions_of_its_models_and_targets(installed: dict[str, str]) -> None:
    installed["tensorrt-rtx"] = "1.8.0"
    other = a_model(name="other")
    facts = environment.gather_facts([a_model(), other], locked_to())
    assert [facts[name].toolchains[a_model().targets[0]].version for name in ("net", "other")] == ["1.7.1", "1.8.0"]
    assert facts["net"].locked_steps is not None and facts["other"].locked_steps is None


def test_a_locked_target_of_another_toolchain_is_ignored(installed: dict[str, str]) -> None:
    model = locked_to().models["net"]
    lock = replace(a_lock(), models={"net": replace(model, targets={"ada": LockedTarget("tensorrt", "10.0")})})
    assert environment.gather_facts([a_model()], lock)["net"].toolchains[a_model().targets[0]].version == "1.7.1"


def test_a_locked_toolchain_need_not_be_installed_to_plan(installed: dict[str, str]) -> None:
    del installed["tensorrt-rtx"]
    facts = environment.gather_facts([a_model()], locked_to())
    with pytest.raises(ToolchainMissing, match="which is not installed"):
        environment.gather_facts([a_model()])
    with pytest.raises(ToolchainMissing, match=r"trtbuild\.lock requires tensorrt-rtx 1\.7\.1; it is not installed"):
        environment.check_targets({"net": a_model()}, [("net", a_model().targets[0])], facts)


def test_the_error_about_a_pin_that_differs_from_the_lock_names_both_places(installed: dict[str, str]) -> None:
    target = replace(a_model().targets[0], version="1.8.0")
    model = a_model(targets=(target,), places={"targets.ada": Origin("trtbuild.yaml", 3)})
    with pytest.raises(LockFileError) as caught:
        environment.gather_facts([model], locked_to())
    assert (caught.value.file, caught.value.line) == ("trtbuild.yaml", 3)
    assert "pinned to tensorrt-rtx 1.8.0, and trtbuild.lock:" in caught.value.text


def test_a_locked_model_is_not_partitioned_again_with_another_parser() -> None:
    world = Machines()
    world.switch_to(GPU, torch=True)  # a machine with the toolchain's own parser
    world.build(NET)
    trace, partition = (world.plan(NET).steps[f"net/{stage}"] for stage in ("trace", "partition"))
    world.switch_to(NO_GPU, torch=True)
    world.locked_steps = LockedSteps(trace.key, VERSIONS, (str(partition.key),))
    steps = list(world.plan(NET).steps.values())
    environment.check_locked_parsers(world.facts(NET), steps)  # the partition step is a hit, so no parser is needed
    assert partition.record is not None
    world.evict(partition.record.outputs["partitions"])
    steps = list(world.plan(NET).steps.values())
    with pytest.raises(
        EnvironmentFault,
        match=r"the parser of tensorrt 8\.6\.0; this machine has the parser of tensorrt-rtx 1\.7\.1",
    ):
        environment.check_locked_parsers(world.facts(NET), steps)
    world.switch_to(GPU, torch=True)
    environment.check_locked_parsers(world.facts(NET), steps)
    world.switch_to(NO_GPU, torch=True)
    world.locked_steps = None  # as with --upgrade: this machine's parser is used
    environment.check_locked_parsers(world.facts(NET), list(world.plan(NET).steps.values()))


def test_each_release_of_a_toolchain_is_compared_with_its_own_parser() -> None:
    class TwoReleases(Machines):
        """Machines whose stand-in (TensorRT-RTX's parser) limits int64 values to 32 bits for TensorRT 8.6 only."""

        def facts(self, model: Model) -> Facts:
            facts = super().facts(model)
            toolchains = {
                target: replace(found, stand_in=replace(RTX, narrows_int64=found.version == "8.6.0"))
                for target, found in facts.toolchains.items()
            }
            return replace(facts, toolchains=toolchains)

    model = a_model(targets=(HOPPER, replace(HOPPER, name="newer", version="10.0")))
    world = TwoReleases()
    world.switch_to(NO_GPU, torch=True)
    world.build(model)
    records = [step.record for step in world.plan(model).steps.values() if step.stage == "partition"]
    world.evict(*{record.outputs["partitions"] for record in records if record is not None})
    partitions = [step for step in world.plan(model).steps.values() if step.stage == "partition"]
    parsers = [stand_in_of(step.recipe) for step in partitions if step.recipe is not None]
    assert [step.verdict for step in partitions] == ["run", "run"] and parsers[0] != parsers[1]
    environment.check_locked_parsers(world.facts(model), partitions)


def test_a_torch_that_differs_from_the_lock_cannot_trace(installed: dict[str, str]) -> None:
    lock = locked_to()
    assert environment.gather_facts([a_model()], lock)["net"].versions is not None
    environment.check_torch_libraries("net", environment.gather_facts([a_model()], lock)["net"])
    installed["torch"] = "2.14.0"
    facts = environment.gather_facts([a_model()], lock)["net"]
    assert facts.versions is None
    with pytest.raises(EnvironmentFault) as caught:
        environment.check_torch_libraries("net", facts)
    assert "trtbuild.lock requires torch 2.13.0 (installed: 2.14.0)" in caught.value.text
    assert caught.value.hint is not None and caught.value.hint.startswith(
        "pip install 'torch==2.13.0'; or use the installed"
    )


def test_the_error_names_another_version_of_python(installed: dict[str, str]) -> None:
    facts = environment.gather_facts([a_model()], locked_to(python="3.8"))["net"]
    with pytest.raises(EnvironmentFault) as caught:
        environment.check_torch_libraries("net", facts)
    assert "python 3.8 (installed: 3." in caught.value.text
    assert caught.value.hint is not None and caught.value.hint.startswith("use Python 3.8; or use")


def test_the_error_about_a_missing_torch_names_the_locked_version(installed: dict[str, str]) -> None:
    lock = locked_to()
    del installed["torch"]
    with pytest.raises(ToolchainMissing) as caught:
        environment.check_torch_libraries("net", environment.gather_facts([a_model()], lock)["net"])
    assert caught.value.hint == "pip install 'torch==2.13.0'"
    with pytest.raises(ToolchainMissing) as caught:
        environment.check_torch_libraries("net", environment.gather_facts([a_model()])["net"])
    assert caught.value.hint == "pip install 'trtbuild[torch]'"
