"""``trtbuild verify``."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common, request
from trtbuild.cli.commands.sections import examples
from trtbuild.core.model.verification import RANDOM_POINTS, SEED
from trtbuild.errors import UsageError


@click.command(
    epilog=examples(
        "trtbuild build && trtbuild verify",
        "trtbuild verify vit --points 20 --seed 7",
        "trtbuild verify dist/vit              # on the machine with the GPU, where only the package is",
        "trtbuild verify vit --replay .trtbuild/verify/vit.safetensors    # the worst inputs once more",
    )
)
@click.argument("models", metavar="[MODEL|PACKAGE]...", nargs=-1, shell_complete=completing.packages)
@click.option(
    "--points",
    type=click.IntRange(min=0),
    metavar="N",
    default=RANDOM_POINTS,
    show_default=True,
    help="Random points per profile, besides min, opt and max.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", default=SEED, show_default=True, help="What is random."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="X",
    help="The largest error, in place of the one by precision.",
)
@click.option(
    "--replay",
    metavar="FILE",
    shell_complete=completing.file,
    help="Compare with these inputs alone (safetensors, by name).",
)
@common
def verify(
    models: tuple[str, ...],
    points: int,
    seed: int,
    tolerance: float | None,
    replay: str | None,
    flags: dict[str, Any],
) -> int:
    """Compare what was built with PyTorch.

    Every converted partition is run by onnxruntime on the CPU, and every engine on a GPU that it fits, at min, opt,
    max and random shapes of each profile. What was found right goes into the package's provenance, and is not compared
    again. Of a PACKAGE (a directory) the engines are compared with its own reference program: on a GPU, and without
    a project.
    """
    from trtbuild.cli.screens import verifications
    from trtbuild.driver.packages.lookup import directory_of
    from trtbuild.driver.verification import models as of_models
    from trtbuild.driver.verification import packages as of_packages
    from trtbuild.driver.verification.document import Options

    options = Options(points, seed, tolerance, replay)
    asked = request(flags, models)
    packages = [path for path in (directory_of(asked.project, name) for name in models) if path is not None]
    if packages and len(packages) < len(models):
        raise UsageError("some of these are packages and some are not", hint="verify the one, then the other")
    with show.watching(flags) as watcher:
        if packages:
            document = of_packages.verify_packages(packages, asked.targets, options, watcher)
        else:
            document = of_models.verify(asked, options, watcher)
    show.document(flags, document, verifications.verified)
    show.problems(verifications.failures(document))
    return 0 if document["ok"] else 1
