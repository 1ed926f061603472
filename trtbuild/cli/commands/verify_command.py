"""``trtbuild verify``: compare the results of a build with PyTorch."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.core.model.verification import DEFAULT_RANDOM_POINTS, DEFAULT_SEED
from trtbuild.errors import UsageError


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild build && trtbuild verify",
        "trtbuild verify vit --points 20 --seed 7",
        "trtbuild verify dist/vit              # on a machine with a GPU, without the project",
        "trtbuild verify vit --device cuda:1",
        "trtbuild verify --workers tls://scheduler.example:8786    # engines on the GPUs of other machines",
        "trtbuild verify vit --max-error 0.05    # a limit for a quantized model",
        "trtbuild verify vit --replay .trtbuild/verify/vit.safetensors    # the worst inputs again",
    ),
)
@click.argument("models", metavar="[MODEL|PACKAGE]...", nargs=-1, shell_complete=completing.packages)
@click.option(
    "--points",
    type=click.IntRange(min=0),
    metavar="N",
    default=DEFAULT_RANDOM_POINTS,
    show_default=True,
    help="Random points per profile, besides min, opt and max.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=DEFAULT_SEED,
    show_default=True,
    help="The seed of all random values.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="X",
    help="The largest allowed error. The default depends on the precision.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(min=0),
    metavar="X",
    help="Fail if the error of a quantized model against the float model is larger.",
)
@click.option(
    "--replay",
    metavar="FILE",
    shell_complete=completing.file,
    help="Compare with the inputs in FILE only (safetensors, by name).",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Run engines on cuda:1, … only. Default: for each target the GPU that fits best. On cpu, no engine runs.",
)
@click.option(
    "--import-operators",
    is_flag=True,
    help="Import the modules of operators from outside PyTorch that a PACKAGE calls. This runs their code.",
)
@click.option(
    "--load-plugins",
    is_flag=True,
    help="Load the library of TensorRT plugins in a PACKAGE. This runs its code.",
)
@common_flags
def verify(
    models: tuple[str, ...],
    points: int,
    seed: int,
    tolerance: float | None,
    max_error: float | None,
    replay: str | None,
    device: str | None,
    import_operators: bool,
    load_plugins: bool,
    flags: dict[str, Any],
) -> int:
    """Compare the built models with PyTorch.

    onnxruntime runs every converted partition on the CPU, and a GPU runs every engine that is built for it. The shapes
    are min, opt, max and random shapes of each profile. Correct results are written to the package's provenance and are
    not compared again. With --workers, the GPUs of other machines run the engines. The engines of a PACKAGE (a
    directory) are compared with its reference program. This needs a GPU, but not the project.
    """
    from trtbuild.cli.screens import verifications
    from trtbuild.driver.packages.lookup import directory_of
    from trtbuild.driver.verification import models as model_verification
    from trtbuild.driver.verification import packages as package_verification
    from trtbuild.driver.verification.document import Options

    options = Options(points, seed, tolerance, replay, max_error, import_operators, load_plugins, device)
    requested = request(flags, models)
    packages = [path for path in (directory_of(requested.project, name) for name in models) if path is not None]
    if packages and len(packages) < len(models):
        raise UsageError("packages and models cannot be verified together", hint="verify one kind after the other")
    if packages and requested.workers is not None:
        raise UsageError(
            "--workers is for the models of a project, and a package is verified on this machine",
            hint="leave --workers out, or name models",
        )
    with show.progress_watcher(flags) as watcher:
        if packages:
            document = package_verification.verify_packages(packages, requested.targets, options, watcher)
        else:
            document = model_verification.verify(requested, options, watcher)
    show.document(flags, document, verifications.verify_lines)
    show.problems(verifications.failures(document))
    return 0 if document.ok else 1
