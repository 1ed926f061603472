"""Generate 64 tokens with decoders, and compare the tokens (greedy decoding) and the tokens per second with PyTorch.

`static_decoder` and `growing_decoder` are Llama models of transformers. `static_decoder` keeps a cache of a fixed size as
its state. The caller of `growing_decoder` passes the cache in and gets a longer one back. `token_decoder` uses no int64, so
it is one engine even in TensorRT 8.6. All models were converted on a machine without a GPU. The GPU host builds engines.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.gpu.cases import import_file
from benchmarks.gpu.host import Host
from benchmarks.gpu.subjects.numerics import verify_rows

#: The numbers of tokens in the prompt, and of generated tokens.
_PROMPT, _NEW = 16, 64
#: The number of generated texts whose median speed is reported.
_TEXTS = 5

#: A function that returns the tokens that a decoder generates after the prompt.
Generate = Callable[[], list[int]]


def rows(host: Host) -> Iterator[Row]:
    # If there is a Python without torch, it builds the engines. The host's torch may have another version than the torch
    # that traced the models, and a build with the host's torch would trace them again.
    build = host.trtbuild(
        host.decoders, "build", "--json", "--keep-going", without_torch=host.python_without_torch is not None
    )
    (host.work / "build-decoders.json").write_text(build.stdout)
    (host.work / "build-decoders.stderr").write_text(build.stderr)
    document = json.loads(build.stdout)
    ran = {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}
    yield Check("decoders: only engine and package steps ran", set(ran) <= {"engine", "package"}, f"ran {ran}")
    for step in document["steps"]:
        if step["verdict"] == "failed":
            yield Check(f"{step['id']}: built", False, step["error"]["text"])
    packages = sorted(path.parent for path in (host.decoders / "dist").glob("*/index.json"))
    yield from verify_rows(host, host.decoders, "its engines", [str(path) for path in packages])
    for path in packages:
        (target,) = json.loads((path / "index.json").read_text())["targets"].values()
        kinds = [partition["kind"] for partition in target["partitions"]["partitions"]]
        yield Measurement(f"{path.name}: partitions", Value(" and ".join(kinds), len(kinds), ""))
    built = {path.name for path in packages}
    for name, needed, candidates_of in (
        ("static_decoder", {"static_decoder"}, _static),
        ("growing_decoder", {"prefill", "growing_decoder"}, _growing),  # `prefill` computes the first token
        ("token_decoder", {"token_decoder"}, _token_by_token),
    ):
        if needed <= built:
            yield from _rows_of(name, candidates_of(host), host)


def _rows_of(name: str, candidates: dict[str, Generate], host: Host) -> Iterator[Row]:
    expected = candidates["eager"]()
    yield Check(
        f"{name}: the text has many tokens", len(set(expected)) > _NEW // 2, f"{len(set(expected))} different tokens"
    )
    for candidate, generate in list(candidates.items()):
        try:
            text = generate()
        except Exception as error:  # torch.compile does not work on every host
            yield Check(f"{name}: {candidate} runs", False, f"{type(error).__name__}: {error}"[:300])
            del candidates[candidate]
            continue
        equal = sum(token == expected_token for token, expected_token in zip(text, expected, strict=True))
        yield Check(f"{name}: {candidate} generates eager's tokens", text == expected, f"{equal} of {_NEW}")
    speeds = {candidate: _tokens_per_s(generate, host) for candidate, generate in candidates.items()}
    for candidate, speed in speeds.items():
        if candidate != "eager":
            yield Ratio(
                f"{name}: {candidate} compared with eager",
                Value(candidate, round(speed), "tokens/s"),
                Value("eager", round(speeds["eager"]), "tokens/s"),
            )


def _tokens_per_s(generate: Generate, host: Host) -> float:
    times = []
    for _ in range(_TEXTS):
        host.synchronize()
        started = time.perf_counter()
        generate()
        times.append(time.perf_counter() - started)
    return _NEW / statistics.median(times)


def _models(host: Host, name: str) -> Any:
    return import_file(host.decoders / "models" / f"{name}.py")


def _size(host: Host) -> dict[str, int]:
    return dict(json.loads((host.decoders / "size.json").read_text()))


def _prompt(host: Host) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)
    vocabulary_size = 8 * _size(host)["hidden"]  # in all three decoders
    return torch.randint(0, vocabulary_size, (1, _PROMPT), generator=generator).to(host.device)


def _package_modules(host: Host, name: str) -> dict[str, Any]:
    """Return the package's module, without and with CUDA graphs, by the names that the rows show."""
    import trtbuild

    loaded = trtbuild.load(host.decoders / "dist" / name, device=host.device)
    return {"trtbuild": loaded.module(), "trtbuild with CUDA graphs": loaded.module(cuda_graphs=True)}


def _static(host: Host) -> dict[str, Generate]:
    import torch

    prompt = _prompt(host)
    modules = _package_modules(host, "static_decoder")

    def with_state(module: Any) -> Generate:
        def generate() -> list[int]:
            module.reset_state()
            tokens, text = prompt, []
            for _ in range(_NEW):
                tokens = module(tokens).argmax(-1, keepdim=True)
                text.append(tokens)
            return [int(token) for token in torch.cat(text, 1)[0].tolist()]

        return generate

    eager = _models(host, "decoders").decoder(**_size(host)).to(host.device)
    compiled = torch.compile(eager)
    return {
        "eager": lambda: _with_static_cache(eager, prompt),
        **{name: with_state(module) for name, module in modules.items()},
        "torch.compile": lambda: _with_static_cache(compiled, prompt),
    }


def _with_static_cache(decoder: Any, prompt: Any) -> list[int]:
    import torch
    from transformers import StaticCache

    tokens, text = prompt, []
    cache = StaticCache(decoder.config, max_cache_len=128)
    with torch.inference_mode():
        for _ in range(_NEW):
            logits = decoder(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            text.append(tokens)
    return [int(token) for token in torch.cat(text, 1)[0].tolist()]


def _growing(host: Host) -> dict[str, Generate]:
    import torch

    prompt = _prompt(host)
    models = _models(host, "decoders")
    prefills, decoders = _package_modules(host, "prefill"), _package_modules(host, "growing_decoder")

    def generator_of(first: Any, following: Any) -> Generate:
        def generate() -> list[int]:
            with torch.inference_mode():
                logits, past = first(prompt)
                text = []
                for _ in range(_NEW):
                    tokens = logits.argmax(-1, keepdim=True)
                    text.append(tokens)
                    logits, past = following(tokens, past)
            return [int(token) for token in torch.cat(text, 1)[0].tolist()]

        return generate

    first, following = (
        model.to(host.device) for model in (models.prefill(**_size(host)), models.growing_decoder(**_size(host)))
    )
    return {
        "eager": generator_of(first, following),
        "trtbuild": generator_of(prefills["trtbuild"], decoders["trtbuild"]),
        "torch.compile": generator_of(first, torch.compile(following, dynamic=True)),
    }


def _token_by_token(host: Host) -> dict[str, Generate]:
    import torch

    prompt = _prompt(host).to(torch.int32)
    modules = _package_modules(host, "token_decoder")
    model = _models(host, "token_decoder").build(**_size(host)).to(host.device)
    initial_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def reset_model() -> None:
        for name, value in initial_buffers.items():
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, value.clone())

    def generator_of(call: Any, reset: Callable[[], object]) -> Generate:
        def generate() -> list[int]:
            reset()
            with torch.inference_mode():
                for number in range(_PROMPT):
                    logits = call(prompt[:, number : number + 1])
                text = []
                for _ in range(_NEW):
                    token = logits.argmax(-1, keepdim=True).to(torch.int32)
                    text.append(token)
                    logits = call(token)
            return [int(token) for token in torch.cat(text, 1)[0].tolist()]

        return generate

    return {
        "eager": generator_of(model, reset_model),
        **{name: generator_of(module, module.reset_state) for name, module in modules.items()},
        "torch.compile": generator_of(torch.compile(model), reset_model),
    }
