"""``trtbuild run`` and ``trtbuild bench``: commands that run packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.commands.show import Flags
from trtbuild.errors import UsageError

_DEVICE = click.option(
    "--device",
    metavar="DEVICE",
    help="cuda, cuda:1, …, or cpu. On cpu, the reference program runs: in PyTorch, or in onnxruntime for an ONNX model.",
)
_IMPORT_OPERATORS = click.option(
    "--import-operators",
    is_flag=True,
    help="Import the modules of operators from outside PyTorch that the package calls. This runs their code.",
)
_LOAD_PLUGINS = click.option(
    "--load-plugins",
    is_flag=True,
    help="Load the library of TensorRT plugins in the package. This runs its code.",
)
_PROFILE = click.option("--profile", metavar="NAME", help="Use the shapes of this profile.")


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild run vit --device cpu",
        "trtbuild run dist/vit --input image=photo.npy --output scores.npz",
        "trtbuild run vit --input image=random:4x3x224x224 --json",
    ),
)
@click.argument("package", metavar="PACKAGE|MODEL", shell_complete=completing.packages)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="INPUT",
    help="NAME=FILE (.npy, .npz, .safetensors), NAME=random:2x3x64, or a FILE that names inputs. Default: random.",
    shell_complete=completing.file,
)
@_PROFILE
@click.option(
    "--at",
    "size_name",
    type=click.Choice(["min", "opt", "max"]),
    default="opt",
    help="Use the min, opt (default) or max shapes.",
)
@_DEVICE
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="The seed of random inputs.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the outputs to FILE: .npz, .safetensors, or .npy for a single output.",
    shell_complete=completing.file,
)
@_IMPORT_OPERATORS
@_LOAD_PLUGINS
@common_flags
def run(
    package: str,
    inputs: tuple[str, ...],
    profile: str | None,
    size_name: str,
    device: str | None,
    seed: int,
    output: str | None,
    import_operators: bool,
    load_plugins: bool,
    flags: Flags,
) -> int:
    """Run a package once.

    Shows the dtype, the shape and a summary of the values of each output.
    """
    from trtbuild.cli.screens import runs
    from trtbuild.driver.running.run import run as run_package

    document = run_package(
        request(flags),
        package,
        inputs=inputs,
        profile=profile,
        which=size_name,
        device=device,
        output=output,
        seed=seed,
        import_operators=import_operators,
        load_plugins=load_plugins,
    )
    show.document(flags, document, runs.run_lines)
    return 0


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild bench vit --eager --torch-compile",
        "trtbuild bench dist/vit --profile photo --shape image=4x3x224x224",
        "trtbuild bench vit --eager --plot vit.svg",
    ),
)
@click.argument("package", metavar="PACKAGE|MODEL", shell_complete=completing.packages)
@_PROFILE
@click.option("--shape", "shapes", multiple=True, metavar="SHAPES", help="Also measure this shape: NAME=2x64[,NAME=2].")
@click.option(
    "--eager", "with_eager", is_flag=True, help="Compare with the original module. Its code runs in another process."
)
@click.option(
    "--torch-compile", "with_torch_compile", is_flag=True, help="Compare with torch.compile of the original module."
)
@_DEVICE
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="S",
    help="Seconds of measurement per shape, for the package and for each module that it is compared with.",
)
@click.option(
    "--warmup",
    "warmup_s",
    type=click.FloatRange(min=0),
    default=0.5,
    metavar="S",
    help="Seconds of warm-up before each of these measurements.",
)
@click.option("--plot", metavar="FILE", help="Draw the latencies, as SVG.", shell_complete=completing.file)
@_IMPORT_OPERATORS
@_LOAD_PLUGINS
@common_flags
def bench(
    package: str,
    profile: str | None,
    shapes: tuple[str, ...],
    with_eager: bool,
    with_torch_compile: bool,
    device: str | None,
    duration_s: float,
    warmup_s: float,
    plot: str | None,
    import_operators: bool,
    load_plugins: bool,
    flags: Flags,
) -> int:
    """Measure the latency of a package by shape.

    Measures single calls after a warm-up, and waits for the result of each. The shapes are min, opt and max of each
    profile, and those of --shape.
    """
    from trtbuild.cli.screens import latency_plot, runs
    from trtbuild.driver.project.folders import STATE_FOLDER
    from trtbuild.driver.running import bench as bench_driver
    from trtbuild.driver.running.kept import keep_bench
    from trtbuild.driver.workers.stopwatch import Budget

    requested = zip(bench_driver.ORIGINAL_RUNNERS, (with_eager, with_torch_compile), strict=True)
    originals = [name for name, is_requested in requested if is_requested]
    with show.progress_watcher(flags) as watcher:
        document = bench_driver.bench(
            request(flags),
            package,
            shapes=shapes,
            profile=profile,
            originals=originals,
            device=device,
            budget=Budget(warmup_s, duration_s),
            watcher=watcher,
            import_operators=import_operators,
            load_plugins=load_plugins,
        )
    keep_bench(request(flags).project / STATE_FOLDER, document)
    if plot is not None:
        _write_plot(Path(flags.get("directory") or ".") / plot, latency_plot.latency_svg(document))
    show.document(flags, replace(document, plot=plot), runs.bench_lines)
    return 0


def _write_plot(path: Path, text: str) -> None:
    """Write the file of `--plot`. Raises UsageError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {path}: {(error.strerror or str(error)).lower()}") from None
