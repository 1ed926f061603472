"""The built examples of manifests/state give the results of their PyTorch modules in many calls."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import trtbuild
from tests.conftest import CommandLine, ran
from tests.projects import edit
from trtbuild.errors import CallRefused, UsageError

EXAMPLES = Path(__file__).parents[3] / "manifests" / "state"
PROMPT = torch.tensor([[7, 451, 3, 90, 12, 333, 58]])
NEW_TOKENS = 64


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A copy of manifests/state, built once for all processes of a test run. Tests must not change its files."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project = base / "state-examples"
    command = CommandLine(project, base / "state-cache")
    with open(base / "state-examples.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not project.exists():
            shutil.copytree(EXAMPLES, project, ignore=shutil.ignore_patterns("__pycache__", "dist", ".trtbuild"))
        command("build", timeout_s=600)
    return command


def example_module(name: str) -> Any:
    specification = importlib.util.spec_from_file_location(f"{name}_with_state", EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def expected_tokens() -> list[int]:
    """Greedy decoding by transformers itself."""
    tokens = (
        example_module("decoders")
        .decoder()
        .generate(PROMPT, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    )
    return list(tokens[0, PROMPT.shape[1] :].tolist())


def load_module(examples: CommandLine, model: str) -> Any:
    return trtbuild.load(examples.project / "dist" / model, device="cpu").module()


def generate(decoder: Any) -> list[int]:
    """Decode greedily, and return the tokens after PROMPT."""
    tokens, generated = PROMPT, []
    for _ in range(NEW_TOKENS):
        tokens = decoder(tokens).argmax(-1, keepdim=True)
        generated.append(tokens.item())
    return generated


def test_all_models_are_right_and_are_one_engine(examples: CommandLine) -> None:
    document = examples("verify")
    assert {model["model"]: model["status"] for model in document["models"]} == dict.fromkeys(
        ("meter", "recurrent", "static_decoder", "prefill", "growing_decoder"), "right"
    )
    assert all(len(cut["partitions"]) == 1 for model in document["models"] for cut in model["cuts"])


@pytest.mark.parametrize(("model", "shape"), [("meter", (5, 16)), ("recurrent", (1, 8))])
def test_calls_in_order_give_the_results_of_the_original_module(
    examples: CommandLine, model: str, shape: tuple[int, ...]
) -> None:
    loaded, original = load_module(examples, model), getattr(example_module("nets"), model)()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(6):
            value = torch.randn(shape, generator=generator)
            torch.testing.assert_close(loaded(value), original(value))
    for name, value in loaded.get_state().items():
        torch.testing.assert_close(value, original.get_buffer(name))


def test_a_decoder_with_a_static_cache_generates_the_tokens_of_transformers(
    examples: CommandLine, expected_tokens: list[int]
) -> None:
    decoder = load_module(examples, "static_decoder")
    assert len(set(expected_tokens)) > NEW_TOKENS // 2  # a text that repeats one token would prove nothing
    assert generate(decoder) == expected_tokens
    # the decoder has not read the last token that it generated
    assert decoder.get_state()["length_0"].item() == PROMPT.shape[1] + NEW_TOKENS - 1
    decoder.reset_state()
    assert generate(decoder) == expected_tokens


def test_a_decoder_whose_cache_grows_generates_the_tokens_of_transformers(
    examples: CommandLine, expected_tokens: list[int]
) -> None:
    decoder = load_module(examples, "growing_decoder")
    logits, past = load_module(examples, "prefill")(PROMPT)
    generated = []
    for _ in range(NEW_TOKENS):
        tokens = logits.argmax(-1, keepdim=True)
        generated.append(tokens.item())
        logits, past = decoder(tokens, past)
    assert generated == expected_tokens


def test_sessions_do_not_share_their_state(examples: CommandLine, expected_tokens: list[int]) -> None:
    first = load_module(examples, "static_decoder")
    first(PROMPT)
    second = first.session()
    assert second.get_state()["length_0"].item() == 0
    assert generate(second) == expected_tokens
    assert first.get_state()["length_0"].item() == PROMPT.shape[1]


def test_a_state_can_be_saved_and_restored(examples: CommandLine) -> None:
    recurrent = load_module(examples, "recurrent")
    steps = torch.randn(4, 1, 8)
    recurrent(steps[0])
    saved = recurrent.get_state()
    results = [recurrent(step) for step in steps[1:]]
    recurrent.set_state(saved)
    torch.testing.assert_close([recurrent(step) for step in steps[1:]], results)
    other = recurrent.session()
    other.set_state(saved)
    torch.testing.assert_close(other(steps[1]), results[0])


def test_a_result_and_a_saved_state_do_not_change_with_later_calls(examples: CommandLine) -> None:
    meter = load_module(examples, "meter")
    meter(torch.randn(5, 16))
    state = meter.get_state()
    copies = {name: value.clone() for name, value in state.items()}
    meter(torch.randn(5, 16))
    assert all(torch.equal(state[name], value) for name, value in copies.items())
    state["mean"].fill_(7.0)  # the state is a copy, so this does not change the module
    assert not torch.equal(meter.get_state()["mean"], state["mean"])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"hiden": torch.zeros(1, 16)}, "no state 'hiden'"),
        ({"hidden": torch.zeros(1, 8)}, r"float32 \[1, 8\], but must be float32 \[1, 16\]"),
        ({"hidden": torch.zeros(1, 16, dtype=torch.float64)}, "float64"),
        ({"hidden": [0.0] * 16}, "a list, but must be a tensor"),
    ],
)
def test_a_state_of_another_model_is_refused_and_nothing_is_replaced(
    examples: CommandLine, values: Any, text: str
) -> None:
    recurrent = load_module(examples, "recurrent")
    before = recurrent.get_state()["hidden"]
    with pytest.raises(CallRefused, match=text):
        recurrent.set_state(values)
    assert torch.equal(recurrent.get_state()["hidden"], before)


def test_a_refused_call_does_not_change_the_state(examples: CommandLine) -> None:
    recurrent = load_module(examples, "recurrent")
    recurrent(torch.randn(1, 8))
    before = recurrent.get_state()["hidden"]
    with pytest.raises(CallRefused):
        recurrent(torch.randn(1, 9))
    assert torch.equal(recurrent.get_state()["hidden"], before)


def test_two_threads_in_one_session_are_refused(examples: CommandLine) -> None:
    recurrent = load_module(examples, "recurrent")
    state = recurrent.runner._state
    with state.call(stream=0):  # another call is in progress
        failures: list[BaseException] = []

        def call() -> None:
            try:
                recurrent(torch.zeros(1, 8))
            except CallRefused as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    (failure,) = failures
    assert "another thread uses this session" in str(failure)
    recurrent(torch.zeros(1, 8))


def test_a_model_without_state_has_no_sessions(examples: CommandLine) -> None:
    prefill = load_module(examples, "prefill")
    for call in (prefill.session, prefill.reset_state, prefill.get_state):
        with pytest.raises(UsageError, match="has no state"):
            call()


def test_run_and_bench_begin_each_call_with_the_initial_state(examples: CommandLine) -> None:
    """The decoder's cache has 128 positions. If calls of 64 tokens kept their state, the third call would fail."""
    document = examples(
        "bench",
        "dist/static_decoder",
        "--device",
        "cpu",
        "--profile",
        "prompt",
        "--shape",
        "tokens=1x64",
        "--duration",
        "0.1",
        "--warmup",
        "0",
    )
    assert document["runs"]
    assert examples("run", "dist/static_decoder", "--device", "cpu")["outputs"]


def test_the_state_is_in_the_index_and_in_inspect(examples: CommandLine) -> None:
    document = examples("inspect", "dist/recurrent")
    assert document["index"]["schema"] == "trtbuild.package/3"
    assert document["index"]["state"] == [{"name": "hidden", "slot": 6, "output": 1, "range": [0.0, 1.0]}]
    assert "state\n  hidden  float32  [1, 16]" in examples.run("inspect", "dist/recurrent").stdout


def test_a_changed_initial_value_reruns_trace_and_package_and_a_changed_pattern_only_the_trace(
    examples: CommandLine, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES, project, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    command = CommandLine(project, examples.cache)
    assert ran(command("build", "recurrent")) == {}
    edit(
        project / "nets.py", 'self.register_buffer("hidden", torch.zeros(', 'self.register_buffer("hidden", torch.ones('
    )
    assert ran(command("build", "recurrent")) == {"trace": 1, "package": 1}
    assert torch.equal(load_module(command, "recurrent").get_state()["hidden"], torch.ones(1, 16))
    edit(project / "trtbuild.yaml", "state: [hidden]", "state: [hid*]")
    assert ran(command("build", "recurrent")) == {"trace": 1}
    edit(project / "trtbuild.yaml", "state: [hid*]", "state: []")
    assert "writes to its buffer 'hidden'" in command("build", "recurrent", expect=1)["errors"][0]["text"]
