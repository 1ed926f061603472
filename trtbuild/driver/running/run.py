"""``trtbuild run``: call a package once, with given or random inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from trtbuild.driver.packages.custom_operators import import_from
from trtbuild.driver.packages.lookup import package_of
from trtbuild.driver.project.workspace import Request
from trtbuild.driver.running.device import PackageOnDevice
from trtbuild.driver.running.documents import Run, TensorSummary
from trtbuild.driver.running.host_tensors import HostTensor, require_numpy, write
from trtbuild.driver.running.inputs import gather_inputs
from trtbuild.driver.running.shapes import dim_sizes, profile_by_name
from trtbuild.errors import UsageError
from trtbuild.runtime.packages.choice import choose_profile
from trtbuild.runtime.packages.package import open_package


def run(
    request: Request,
    name: str,
    *,
    inputs: Sequence[str] = (),
    profile: str | None = None,
    which: str = "opt",
    device: str | None = None,
    output: str | None = None,
    seed: int = 0,
    import_operators: bool = False,
    load_plugins: bool = False,
) -> Run:
    """Call the package `name` (a directory or a model) once, and write the outputs to the file `output`, if given.

    `inputs` have the format of `trtbuild.driver.running.inputs`. A dim that they do not set has its min, opt or max
    size (`which`) in `profile`. If `profile` is None, `gather_inputs` chooses the profile. `import_operators` and
    `load_plugins` are those of `trtbuild.load`. Raises UsageError, PackageError, and the errors of loading and running.
    """
    package = open_package(package_of(request, name))
    index, project = package.index, Path(request.project)
    chosen_profile = profile_by_name(index, profile) if profile is not None else None
    values = gather_inputs(index, inputs, project, profile=chosen_profile, which=which, seed=seed)
    if import_operators:
        import_from(project)
    with PackageOnDevice(
        package,
        device=device,
        target=requested_target(request),
        import_operators=import_operators,
        load_plugins=load_plugins,
    ) as on_device:
        arrays = {name: on_device.put(value.tensor) for name, value in values.items()}
        started = time.perf_counter()
        results = on_device.run(arrays)
        on_device.wait()
        duration_s = time.perf_counter() - started
        outputs = {entry.name: on_device.get(array) for entry, array in zip(index.outputs, results, strict=True)}
        loaded = on_device.loaded
    if output is not None:
        write(project / output, outputs)
    shapes = [values[entry.name].tensor.shape for entry in index.inputs]
    profile_number = choose_profile(index.profiles, shapes)
    return Run(
        package=str(package.path),
        model=index.model,
        device=loaded.device,
        reference=loaded.is_reference,
        computed_by=index.reference_library if loaded.is_reference else None,
        target=loaded.target.name if loaded.target is not None else None,
        profile=index.profiles[profile_number].name if profile_number is not None else None,
        dims=dim_sizes(index, {name: value.tensor.shape for name, value in values.items()}),
        duration_s=round(duration_s, 6),
        inputs=[_summary(name, value.tensor, value.source) for name, value in values.items()],
        outputs=[_summary(name, tensor) for name, tensor in outputs.items()],
        output=output,
    )


def requested_target(request: Request) -> str | None:
    """Return the target of ``--target``, or None without this flag. Raises UsageError for several targets."""
    if len(request.targets) > 1:
        raise UsageError("a package runs for one target", hint="give --target once")
    return request.targets[0] if request.targets else None


def _summary(name: str, tensor: HostTensor, source: str | None = None) -> TensorSummary:
    """Return the summary of a tensor. For complex values, it describes their absolute values."""
    numpy = require_numpy()
    values = tensor.as_floats()
    if values.dtype.kind == "c":
        values = numpy.abs(values)
    is_float = values.dtype.kind == "f"
    finite = values[numpy.isfinite(values)] if is_float else values
    number_type = float if is_float else int
    return TensorSummary(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        min=number_type(finite.min()) if finite.size else None,
        max=number_type(finite.max()) if finite.size else None,
        mean=float(finite.mean(dtype=numpy.float64)) if finite.size else None,
        nan=int(numpy.isnan(values).sum()) if is_float else 0,
        inf=int(numpy.isinf(values).sum()) if is_float else 0,
        source=source,
    )
