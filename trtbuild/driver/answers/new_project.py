"""``trtbuild init``: write a first manifest and, unless the user names a model, a small example model.

Rules
1. No file is overwritten. The only existing file that changes is .gitignore, which gets the missing lines.
2. A project with the example model can be built at once. In a manifest for the user's model, ``CHANGE ME`` marks the
   lines that the user has to edit.
3. The proposed targets fit the installed toolchain, and this machine's GPU if the toolchain supports it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtbuild.core.model.spec import ToolchainName
from trtbuild.driver.answers.documents import InstalledToolchain, NewFile, NewProject
from trtbuild.driver.project.folders import STATE_FOLDER
from trtbuild.errors import UsageError
from trtbuild.manifest.contradictions import needs_float16
from trtbuild.toolchain.libraries import table
from trtbuild.toolchain.libraries.devices import device_sms

MANIFEST_NAME = "trtbuild.yaml"
MANIFEST_FOLDER = "manifests"
EXAMPLE_PATH = "models/example.py"

#: SM → the name of the target, and the GPUs with this SM. Source: NVIDIA, "CUDA GPU Compute Capability".
ARCHITECTURES = {
    75: ("turing", "GeForce RTX 20, T4"),
    80: ("ampere_a100", "A100, A30"),
    86: ("ampere", "GeForce RTX 30, A10, A40"),
    89: ("ada", "GeForce RTX 40, L4, L40"),
    90: ("hopper", "H100, H200"),
    100: ("blackwell_b200", "B200"),
    120: ("blackwell", "GeForce RTX 50, RTX PRO"),
    121: ("spark", "DGX Spark"),
}
#: The SM of the only proposed target if this machine has no GPU that the toolchain supports.
DEFAULT_SM = 89

#: The directories that a build creates in the project, as lines of .gitignore.
CREATED_DIRECTORIES = (f"{STATE_FOLDER}/", "dist/", "cache/")

EXAMPLE_MODEL = '''\
"""An example model. `trtbuild build` calls the function that the manifest names, and traces the returned module."""

import torch
from torch import nn


def build(channels: int = 16) -> nn.Module:
    """Return the module. The arguments are the `kwargs` of the manifest."""
    torch.manual_seed(0)  # Each build has the same weights.
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    ).eval()  # a model in training mode is an error
'''

_SOURCE_PATTERN = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


@dataclass(frozen=True)
class Toolchain:
    """The toolchain that a manifest is written for, and the SMs of this machine's GPUs."""

    name: ToolchainName
    version: str | None
    gpu_sms: tuple[int, ...]

    @property
    def supported_sms(self) -> tuple[int, ...]:
        """The SMs that this toolchain can build for on this machine."""
        return table.FLAVOURS[self.name].sms or self.gpu_sms

    @property
    def proposed_sms(self) -> tuple[int, ...]:
        """The SMs of this machine's GPUs that the toolchain supports, or `DEFAULT_SM`."""
        return tuple(sm for sm in dict.fromkeys(self.gpu_sms) if sm in self.supported_sms) or (DEFAULT_SM,)


def installed_toolchain() -> Toolchain:
    """The installed toolchain; TensorRT-RTX if both or neither of the two are installed."""
    names: tuple[ToolchainName, ...] = ("tensorrt-rtx", "tensorrt")
    versions = {name: table.installed_version(name) for name in names}
    name = next((name for name in names if versions[name]), names[0])
    return Toolchain(name, versions[name], device_sms())


def create(project: Path, source: str | None, toolchain: Toolchain) -> NewProject:
    """Write the files of a new project. `source` names the user's model (``models.vit:build``); None: the example model.

    Raises UsageError before any file is written if `project` is not a directory, if `source` is invalid, or if there is
    already a manifest or, without `source`, the file of the example model. Also raises UsageError if a file cannot be
    written, but a .gitignore that cannot be changed is not an error.
    """
    module, model = _parse_source(source) if source is not None else ("models.example", "example")
    _refuse_existing(project, is_example=source is None)
    files = []
    if source is None:
        files.append(_write_new_file(project, EXAMPLE_PATH, EXAMPLE_MODEL, "a small model to begin with"))
    text = manifest_text(source or f"{module}:build", model, toolchain, is_example=source is None)
    files.append(
        _write_new_file(project, MANIFEST_NAME, text, f"model {model!r} for SM {_join_numbers(toolchain.proposed_sms)}")
    )
    gitignore = _extend_gitignore(project)
    if gitignore is not None:
        files.append(gitignore)
    return NewProject(
        files=files,
        model=model,
        source=source or f"{module}:build",
        toolchain=InstalledToolchain(name=toolchain.name, version=toolchain.version),
        targets=[ARCHITECTURES[sm][0] if sm in ARCHITECTURES else f"sm{sm}" for sm in toolchain.proposed_sms],
        warnings=_warnings(project, source, module, toolchain),
        next=_next_steps(source, toolchain),
    )


def manifest_text(source: str, model: str, toolchain: Toolchain, *, is_example: bool) -> str:
    """The text of the manifest. `is_example`: whether the source is the example model."""
    proposed_sms = toolchain.proposed_sms
    names = [ARCHITECTURES.get(sm, (f"sm{sm}", ""))[0] for sm in proposed_sms]
    lines = [
        "# What trtbuild builds. Every field: docs/manifest.md of trtbuild; `trtbuild schema` is for editors.",
        "version: 1",
        "",
        *_target_lines(toolchain),
        "",
        "# min, opt and max shape of each input: a TensorRT optimization profile. An axis whose sizes differ is dynamic.",
        "profiles:",
    ]
    if is_example:
        lines += [
            "  photo:",
            "    image: {min: [1, 3, 64, 64], opt: [8, 3, 64, 64], max: [32, 3, 64, 64]}",
        ]
    else:
        lines += [
            "  default:",
            "    # CHANGE ME: each input of the model, by the name below, and the shapes that it is called with.",
            "    x: {min: [1, 8], opt: [8, 8], max: [32, 8]}",
        ]
    kwargs = ", kwargs: {channels: 16}" if is_example else ""
    precision_mark = "" if any(needs_float16(toolchain.name, sm) for sm in proposed_sms) else "# "
    lines += [
        "",
        "models:",
        f"  {model}:",
        "    # A callable that returns a torch.nn.Module: module.path:name, imported from this directory.",
        f'    source: {{python: "{source}"{kwargs}}}',
    ]
    if not is_example:
        lines.append("    # CHANGE ME: what forward() takes, in this order. `keyword: true` passes one by its name.")
    lines += [
        f"    inputs: {{{'image' if is_example else 'x'}: {{dtype: float32}}}}",
        f"    profiles: [{'photo' if is_example else 'default'}]",
        f"    targets: [{', '.join(names)}]",
        f"    {precision_mark}precision: float16          # float32 (default), float16 or bfloat16",
        f"    # weights: weights/{model}.safetensors    # a weights file; new weights need no new trace",
        f"    # outputs: {{package: dist/{model}}}    # this is the default",
    ]
    return "\n".join(lines) + "\n"


def _target_lines(toolchain: Toolchain) -> list[str]:
    version = f"{toolchain.name} {toolchain.version}" if toolchain.version else f"{toolchain.name} (not installed)"
    if table.FLAVOURS[toolchain.name].needs_gpu:
        build_text = "builds for the GPUs of the machine that it runs on"
    else:
        build_text = f"builds for SM {_join_numbers(toolchain.supported_sms)}, with no GPU in the machine"
    lines = [f"# GPU architectures. {version} {build_text}."]
    if toolchain.name != "tensorrt-rtx":
        lines += [f"defaults: {{toolchain: {toolchain.name}}}", ""]
    lines.append("targets:")
    for sm in dict.fromkeys([*toolchain.proposed_sms, *toolchain.supported_sms]):
        name, gpus = ARCHITECTURES.get(sm, (f"sm{sm}", ""))
        entry = f"{name}: {{sm: {sm}}}"
        mark = "  " if sm in toolchain.proposed_sms else "  # "
        if needs_float16(toolchain.name, sm):
            gpus += "; float16 only: no float32 matrix products"
        lines.append(f"{mark}{entry:24}# {gpus}".rstrip("# "))  # without names of GPUs, the line has no comment
    return lines


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _parse_source(source: str) -> tuple[str, str]:
    """The module of a source, and a name for the model. Raises UsageError if the source is invalid."""
    match = _SOURCE_PATTERN.fullmatch(source)
    if match is None:
        raise UsageError(
            f"{source!r} is not a source: the form is module.path:callable",
            hint="for example: trtbuild init models.vit:build",
        )
    name = match[1].rpartition(".")[2]
    return match[1], name


def _refuse_existing(project: Path, *, is_example: bool) -> None:
    """Raise UsageError if `project` is not a directory, or has a manifest or, if `is_example`, the example model's file."""
    if not project.is_dir():
        raise UsageError(f"{project} is not a directory", hint="-C names the project's directory")
    existing = [MANIFEST_NAME] if (project / MANIFEST_NAME).exists() or (project / MANIFEST_NAME).is_symlink() else []
    existing += sorted(str(path.relative_to(project)) for path in (project / MANIFEST_FOLDER).glob("*.yaml"))
    if existing:
        raise UsageError(
            f"there is already a manifest: {', '.join(existing[:5])}{', …' if len(existing) > 5 else ''}; "
            "nothing was written",
            hint="`trtbuild plan` shows what it builds",
        )
    if is_example and ((project / EXAMPLE_PATH).exists() or (project / EXAMPLE_PATH).is_symlink()):
        raise UsageError(
            f"{EXAMPLE_PATH} already exists; nothing was written",
            hint="name the model: trtbuild init models.example:build",
        )


def _write_new_file(project: Path, name: str, text: str, description: str) -> NewFile:
    path = project / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror}", hint="no file was overwritten") from None
    return NewFile(path=name, action="written", text=description)


def _extend_gitignore(project: Path) -> NewFile | None:
    """Add the missing lines to .gitignore. Return None if the file does not exist."""
    path = project / ".gitignore"
    try:
        old = path.read_text("utf-8")
        existing = {line.strip().strip("/") for line in old.splitlines()}
        missing_lines = [name for name in CREATED_DIRECTORIES if name.strip("/") not in existing]
        if not missing_lines:
            return NewFile(
                path=".gitignore", action="unchanged", text=f"it already contains {', '.join(CREATED_DIRECTORIES)}"
            )
        with open(path, "a", encoding="utf-8") as file:
            file.write(
                ("" if not old or old.endswith("\n") else "\n") + "".join(f"/{name}\n" for name in missing_lines)
            )
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        return NewFile(path=".gitignore", action="unchanged", text=f"it cannot be changed: {error}")
    return NewFile(path=".gitignore", action="extended", text=f"added {', '.join(missing_lines)}")


def _warnings(project: Path, source: str | None, module: str, toolchain: Toolchain) -> list[str]:
    warnings = []
    file = Path(*module.split("."))
    if source is not None and not any((project / path).exists() for path in (file.with_suffix(".py"), file)):
        warnings.append(f"{file.with_suffix('.py')} does not exist yet; installed modules were not checked")
    unsupported = [sm for sm in dict.fromkeys(toolchain.gpu_sms) if sm not in toolchain.supported_sms]
    if unsupported:
        warnings.append(
            f"this machine's GPU has SM {_join_numbers(unsupported)}, which {toolchain.name} does not support"
        )
    if table.FLAVOURS[toolchain.name].needs_gpu and not toolchain.gpu_sms:
        warnings.append(f"{toolchain.name} builds on a GPU with the target's SM, and this machine has no GPU")
    return warnings


def _next_steps(source: str | None, toolchain: Toolchain) -> list[str]:
    install = [] if toolchain.version else ["pip install 'trtbuild[torch,rtx]'"]
    edit = [] if source is None else [f"edit {MANIFEST_NAME} where it says CHANGE ME"]
    return [*install, *edit, "trtbuild plan", "trtbuild build"]
