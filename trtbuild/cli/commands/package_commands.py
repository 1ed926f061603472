"""The commands that show what was built: ``report``, ``inspect`` and ``diff``."""

from __future__ import annotations

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Command, examples
from trtbuild.cli.commands.show import Flags
from trtbuild.errors import UsageError


@click.command(
    cls=Command,
    epilog=examples("trtbuild report", "trtbuild report -o build.html --build 2    # the build before the last"),
)
@click.option(
    "-o",
    "--output",
    default="trtbuild-report.html",
    show_default=True,
    metavar="FILE",
    help="Write the page to FILE.",
    shell_complete=completing.file,
)
@click.option("--build", "number", type=click.IntRange(min=1), default=1, metavar="N", help="The N-th last build.")
@common_flags
def report(output: str, number: int, flags: Flags) -> int:
    """Write a report of the last build as one HTML page.

    The page needs no network. It shows the time line, why each step ran, partitions, layers, comparisons with PyTorch,
    and the changes since the build before. The last five builds that had something to do are kept.
    """
    from trtbuild.cli.report_page.page import render
    from trtbuild.cli.screens import reports
    from trtbuild.driver.reports import report_file

    project = request(flags).project
    document = report_file.write_report(project, output, number, render)
    show.document(flags, document, reports.report_lines)
    return 0


@click.command(
    cls=Command,
    epilog=examples(
        "trtbuild inspect                       # all packages of the project",
        "trtbuild inspect vit --layers",
        "trtbuild inspect dist/vit --onnx build/onnx --trtexec    # build the same engines with trtexec",
        "trtbuild inspect vit --precision       # what is computed in which type, and why",
    ),
)
@click.argument("path", metavar="[PACKAGE|MODEL]", required=False, shell_complete=completing.packages)
@click.option(
    "--layers", "show_layers", is_flag=True, help="Show the layers of each engine: module paths, operators and types."
)
@click.option(
    "--trtexec",
    "show_trtexec",
    is_flag=True,
    help="Show, for each engine, the trtexec command that builds the same engine.",
)
@click.option(
    "--memory", "show_memory", is_flag=True, help="Show the device memory that each engine needs. Uses the GPU."
)
@click.option("--onnx", metavar="DIR", help="Write the ONNX models of the engines to DIR.")
@click.option(
    "--precision",
    "show_precision",
    is_flag=True,
    help="Show instead what MODEL computes in which type. Needs PyTorch.",
)
@common_flags
def inspect(
    path: str | None,
    show_layers: bool,
    show_trtexec: bool,
    show_memory: bool,
    onnx: str | None,
    show_precision: bool,
    flags: Flags,
) -> int:
    """Show the contents of one package or of all.

    Shows inputs, profiles, targets, partitions, the operators that stay in PyTorch, and the result of trtbuild verify.
    """
    from trtbuild.cli.screens import packages
    from trtbuild.driver import inspection
    from trtbuild.driver.inspection import whole_project

    if show_precision:
        others = {
            "--layers": show_layers,
            "--trtexec": show_trtexec,
            "--memory": show_memory,
            "--onnx": onnx is not None,
        }
        for flag, is_used in others.items():
            if is_used:
                raise UsageError(f"--precision and {flag} exclude each other", hint="use one of them")
        from trtbuild.cli.screens import precisions
        from trtbuild.driver.inspection.precision import inspect_precision

        show.paged(flags, inspect_precision(request(flags), path), precisions.precision_lines)
        return 0
    if path is None:
        inspections = whole_project.inspect_all(request(flags), layers=show_layers, memory=show_memory, onnx=onnx)
        show.paged(flags, inspections, packages.project_screen(layers=show_layers, trtexec=show_trtexec))
        return 0
    document = inspection.inspect(request(flags), path, layers=show_layers, memory=show_memory, onnx=onnx)
    show.paged(flags, document, packages.package_screen(layers=show_layers, trtexec=show_trtexec))
    return 0


@click.command(
    cls=Command,
    epilog=examples("trtbuild diff dist/vit vit    # would a new build be the same?", "trtbuild diff old new --json"),
)
@click.argument("first", metavar="A", shell_complete=completing.packages)
@click.argument("second", metavar="B", shell_complete=completing.packages)
@common_flags
def diff(first: str, second: str, flags: Flags) -> int:
    """Show the differences between two packages or models.

    A and B are directories of packages, or names of models. A model stands for the package that would be built now. The
    exit status is 1 if they differ.
    """
    from trtbuild.cli.screens import differences as differences_screen
    from trtbuild.driver.answers import differences

    document = differences.diff(request(flags), first, second)
    show.document(flags, document, differences_screen.diff_lines)
    return 0 if document.same else 1
