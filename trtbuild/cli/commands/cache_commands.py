"""``trtbuild cache``: size, check, garbage collection and transfer of the cache, and signing keys."""

from __future__ import annotations

import os
from pathlib import Path

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common_flags, request
from trtbuild.cli.commands.sections import Sections, examples
from trtbuild.cli.commands.show import Flags
from trtbuild.cli.screens import caches
from trtbuild.errors import UsageError


@click.group(cls=Sections, epilog=examples("trtbuild cache stats", "trtbuild cache gc --max-size 50GiB --dry-run"))
@common_flags
def cache(flags: Flags) -> None:
    """Show, check, shrink and share the cache.

    The cache is the directory cache/ of the project, or $TRTBUILD_CACHE_DIR. The remotes are in the configuration.
    """


@cache.command("stats")
@common_flags
def stats(flags: Flags) -> int:
    """Show the size by stage, and the hits of the last builds.

    Also shows the space that chunking saves, and the reasons of misses. Builds that had nothing to do are not counted.
    """
    from trtbuild.driver.cache import housekeeping

    show.document(flags, housekeeping.stats(request(flags)), caches.stats_lines)
    return 0


@cache.command(
    "verify",
    epilog=examples("trtbuild cache verify", "trtbuild cache verify --rebuild 10%     # are the engines correct?"),
)
@click.option("--rebuild", metavar="N%", help="Build this share of the project's engines again, and compare the bytes.")
@click.option("--seed", type=int, metavar="NUMBER", help="With --rebuild: the seed of the sample, to repeat it.")
@common_flags
def verify(rebuild: str | None, seed: int | None, flags: Flags) -> int:
    """Check every entry, and move damaged ones to quarantine.

    With --rebuild, a sample of the engines is built again outside the cache. Engines are skipped if their toolchain does
    not produce the same bytes each time.
    """
    from trtbuild.cli.screens import rebuilds
    from trtbuild.driver.cache import housekeeping, rebuilding

    if seed is not None and rebuild is None:
        raise UsageError("--seed needs --rebuild", hint="add --rebuild N%")
    share = None if rebuild is None else rebuilding.parse_share(rebuild)
    document = housekeeping.verify(request(flags))
    if share is not None:
        with show.progress_watcher(flags) as watcher:
            document = rebuilding.add_rebuilt_engines(document, request(flags), share, seed, watcher)
    show.document(
        flags,
        document,
        lambda result: caches.verify_lines(result) + (rebuilds.rebuild_lines(result.rebuilt) if result.rebuilt else []),
    )
    return 0 if document.ok else 1


@cache.command(
    "gc",
    epilog=examples("trtbuild cache gc --max-size 50GiB", "trtbuild cache gc --dir /srv/trtbuild --max-age 30d"),
)
@click.option("--max-size", metavar="SIZE", help="Keep at most this size, such as 50GiB. Default: the configured size.")
@click.option("--max-age", metavar="AGE", help="Remove entries that were not used for this time, such as 30d or 12h.")
@click.option(
    "--dir",
    "root",
    metavar="DIR",
    help="Remove entries from this directory instead: a shared one, or that of an nginx cache.",
)
@click.option(
    "--grace", metavar="AGE", help="With --dir: keep all files that are younger than this. Default and recommended: 1h."
)
@click.option("--lock", "locks", multiple=True, metavar="FILE", help="Also keep the entries that this lock file names.")
@click.option("--dry-run", is_flag=True, help="Remove nothing; only show what would be removed.")
@common_flags
def gc(
    max_size: str | None,
    max_age: str | None,
    root: str | None,
    grace: str | None,
    locks: tuple[str, ...],
    dry_run: bool,
    flags: Flags,
) -> int:
    """Remove the least recently used entries.

    Entries that a running build uses or that trtbuild.lock names are kept. If there is neither a size nor an age, only
    unreferenced files are removed.

    In a shared directory (--dir), a file is removed by the third collection that finds no record for it. The time between
    these collections must be at least --grace. Run the command every hour or every day, on the machine that has the disk.
    """
    from trtbuild.driver.cache import housekeeping

    document = housekeeping.collect(
        request(flags), max_size, max_age, dry_run=dry_run, directory=root, grace=grace, locks=locks
    )
    show.document(flags, document, caches.gc_lines)
    return 0


@cache.command("keygen")
@click.option("--name", default="ci", show_default=True, metavar="NAME", help="The name of the key.")
@click.option("--out", metavar="FILE", help="The file of the private key. Default: beside the configuration file.")
@common_flags
def keygen(name: str, out: str | None, flags: Flags) -> int:
    """Make a key pair that signs build results.

    The private key is written to a new file; an existing file is never replaced. The public key is printed, for the
    machines that trust these results.
    """
    from trtbuild.driver.cache import keygen as key_making

    show.document(flags, key_making.create_key(name, out, os.environ), caches.keygen_lines)
    return 0


@cache.command("push", epilog=examples("trtbuild cache push", "trtbuild cache push vit --target ada --remote team"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--remote", metavar="NAME", help="Send to this remote only. Default: all writable remotes.")
@common_flags
def push(models: tuple[str, ...], remote: str | None, flags: Flags) -> int:
    """Send the records of MODELS, or of all models, to the remotes.

    Sends every record that a build of these models uses. Records that a remote already has are not sent again. Exits
    with status 1 if a record could not be sent or is not built.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import transfer

    with transfers.progress(flags) as report_progress:
        document = transfer.push(request(flags, models), remote, report_progress)
    show.document(flags, document, transfers.push_lines)
    return 0 if document.ok else 1


@cache.command("pull", epilog=examples("trtbuild cache pull", "trtbuild cache pull vit --target ada --remote team"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--remote", metavar="NAME", help="Read from this remote only. Default: all readable remotes.")
@common_flags
def pull(models: tuple[str, ...], remote: str | None, flags: Flags) -> int:
    """Fetch the records of MODELS, or of all models, from the remotes.

    Fetches every record that a build of these models uses. Nothing is built, and neither torch nor TensorRT is needed.
    If no remote has some of the records, these are listed, and the exit status is 1.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import transfer

    with transfers.progress(flags) as report_progress:
        document = transfer.pull(request(flags, models), remote, report_progress)
    show.document(flags, document, transfers.pull_lines)
    return 0 if document.ok else 1


@cache.command(
    "export",
    epilog=examples("trtbuild cache export vit.bundle vit --target ada", "trtbuild cache export all.bundle --all"),
)
@click.argument("file", shell_complete=completing.file)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--all", "export_all", is_flag=True, help="Export the whole local cache.")
@common_flags
def export(file: str, models: tuple[str, ...], export_all: bool, flags: Flags) -> int:
    """Write the records of MODELS, or of all models, to one FILE.

    The file has every record that a build of these models uses. It is for machines without a network: after
    trtbuild cache import on such a machine, a build has nothing to run.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import bundles

    if export_all and (models or flags.get("targets")):
        raise UsageError(
            "--all exports the whole cache, not some models or targets",
            hint="leave out --all, or the models and targets",
        )
    export_records = bundles.export_all if export_all else bundles.export_models
    with transfers.progress(flags) as report_progress:
        document = export_records(request(flags, models), Path(file), report_progress)
    show.document(flags, document, transfers.export_lines)
    return 0


@cache.command("import")
@click.argument("file", shell_complete=completing.file)
@common_flags
def import_(file: str, flags: Flags) -> int:
    """Import a FILE that trtbuild cache export wrote.

    The whole file is checked before a part of it is used. Exits with status 1 if some records are not trusted here.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import bundles

    with transfers.progress(flags) as report_progress:
        document = bundles.import_bundle(request(flags), Path(file), report_progress)
    show.document(flags, document, transfers.import_lines)
    return 0 if document.ok else 1
