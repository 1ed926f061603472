"""The options of `trtbuild.compile` and of ``torch.compile(…, backend="trtbuild")``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.precisions import Precisions
from trtbuild.core.model.spec import PartitionSettings, Target
from trtbuild.driver.in_program.arguments import checked
from trtbuild.driver.in_program.settings import builder_of, partition_of, precisions_of
from trtbuild.driver.in_program.targets import target_of
from trtbuild.driver.packages.machine import gpu_number
from trtbuild.errors import UsageError


@dataclass(frozen=True)
class Options:
    """The result of `options_of`."""

    target: Target
    device: Any
    precisions: Precisions
    partition: PartitionSettings
    builder: BuilderSettings
    reference: bool
    cache_dir: str | os.PathLike[str] | None
    jobs: int | None


def options_of(
    *,
    target: Any = None,
    device: Any = None,
    toolchain: str | None = None,
    toolchain_version: str | None = None,
    compatibility: str | None = None,
    hardware_compatible: bool = False,
    precision: Any = None,
    enabled_precisions: Iterable[Any] | None = None,
    torch_executed_ops: Iterable[Any] = (),
    min_block_size: int | None = None,
    require_full_compilation: bool = False,
    granularity: Any = None,
    truncate_double: bool = False,
    truncate_long_and_double: bool | None = None,
    builder: Mapping[str, Any] | None = None,
    reference: bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    **settings: Any,
) -> Options:
    """Check the options of `compile` and of ``torch.compile``. Raises UsageError, EnvironmentFault.

    * `target`: the GPU architecture to build for (``89``, ``{"sm": 90, "toolchain": "tensorrt"}``). The default is the
      architecture of the GPU `device`.
    * `device`: where the result runs. The default is the current GPU. On ``"cpu"``, PyTorch runs the reference
      program, which needs no engine and no GPU.
    * `toolchain`, `toolchain_version` and `compatibility`: the toolchain for `target`, the toolchain's version, and the
      compatibility policy, as in a manifest. ``hardware_compatible=True`` means ``compatibility="ampere_plus"``.
    * `precision` (or Torch-TensorRT's `enabled_precisions`), `torch_executed_ops`, `min_block_size`,
      `require_full_compilation`, `granularity`, and TensorRT's builder settings: as in a manifest. Builder settings are
      separate arguments, or members of the mapping `builder`. `precision` may be a mapping:
      ``{"default": torch.half, torch.float32: ["*.norm"]}``.
    * `truncate_double`: whether float64 values are computed in float32. Inputs and outputs keep their types.
      `truncate_long_and_double` is another name of this option. Values of int64 are never truncated.
    * `reference`: whether the package also has the reference program. The default is True if `device` is the CPU.
    * `cache_dir`: the directory of the cache. The default is ``$TRTBUILD_CACHE_DIR`` if it is set, and otherwise ``cache/``
      in the working directory.
    * `jobs`: the largest number of steps that run at once. The default is the number of processors.
    """
    on_cpu = gpu_number(device) is None
    if reference is not None:
        checked.flag("reference", reference)
    if on_cpu and reference is False:
        raise UsageError(
            'device="cpu" runs the reference program, and reference=False leaves this program out of the package',
            hint="leave reference out, or name a GPU",
        )
    hardware_compatible = checked.flag("hardware_compatible", hardware_compatible)
    for argument, value in (("toolchain_version", toolchain_version), ("compatibility", compatibility)):
        if value is not None:
            checked.text(argument, value)
    builder_settings = {} if builder is None else checked.mapping("builder", builder, '{"optimization_level": 3}')
    for name in builder_settings.keys() & settings.keys():
        if builder_settings[name] != settings[name]:
            raise UsageError(
                f"{name} is given twice with different values: in builder, and as a separate argument",
                hint="leave one of the two out",
            )
    if hardware_compatible and compatibility not in (None, "ampere_plus"):
        raise UsageError(
            f'hardware_compatible=True means compatibility="ampere_plus", but compatibility is {compatibility!r}',
            hint="leave one of the two out",
        )
    compatibility_policy = "ampere_plus" if hardware_compatible else compatibility
    return Options(
        target=target_of(
            target, device=device, toolchain=toolchain, version=toolchain_version, compatibility=compatibility_policy
        ),
        device=device,
        precisions=precisions_of(precision, enabled_precisions),
        partition=partition_of(
            torch_executed_ops,
            min_block_size,
            require_full_compilation,
            granularity,
            truncate_double,
            truncate_long_and_double,
        ),
        builder=builder_of({**builder_settings, **settings}, OPTION_NAMES),
        reference=on_cpu if reference is None else reference,
        cache_dir=None if cache_dir is None else checked.path("cache_dir", cache_dir),
        jobs=None if jobs is None else checked.count("jobs", jobs),
    )


#: The names of the options, for suggestions: a misspelt option arrives in `settings`, like a builder setting.
OPTION_NAMES = [option for option in inspect.signature(options_of).parameters if option != "settings"]
