"""``trtbuild cache``: what there is, whether it is sound, collecting what is not used, and moving it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trtbuild.cli.commands import completing, show
from trtbuild.cli.commands.options import common, request
from trtbuild.cli.commands.sections import Sections, examples
from trtbuild.cli.screens import caches
from trtbuild.errors import UsageError

Flags = dict[str, Any]


@click.group(cls=Sections, epilog=examples("trtbuild cache stats", "trtbuild cache gc --max-size 50GiB --dry-run"))
@common
def cache(flags: Flags) -> None:
    """Show, check, shrink and share the cache.

    It is cache/ of the project, or what $TRTBUILD_CACHE_DIR names; remotes are those of the configuration.
    """


@cache.command("stats")
@common
def stats(flags: Flags) -> int:
    """Show the size of the cache by stage, and what chunking saves."""
    from trtbuild.driver.cache import housekeeping

    show.document(flags, housekeeping.stats(request(flags)), caches.stats)
    return 0


@cache.command(
    "verify",
    epilog=examples("trtbuild cache verify", "trtbuild cache verify --rebuild 10%     # does it hold what it says?"),
)
@click.option("--rebuild", metavar="N%", help="Build this share of the project's engines again, and compare the bytes.")
@click.option("--seed", type=int, metavar="NUMBER", help="With --rebuild: take the same sample as another time.")
@common
def verify(rebuild: str | None, seed: int | None, flags: Flags) -> int:
    """Check every entry, and move damaged ones to quarantine.

    With --rebuild, engines whose toolchain gives the same bytes every time are built again, apart from the cache.
    """
    from trtbuild.cli.screens import rebuilds
    from trtbuild.driver.cache import housekeeping, rebuilding

    share = None if rebuild is None else rebuilding.share_of(rebuild)
    document = housekeeping.verify(request(flags))
    if share is not None:
        with show.watching(flags) as watcher:
            document = rebuilding.compared(document, request(flags), share, seed, watcher)
    show.document(
        flags, document, lambda found: caches.verified(found) + (rebuilds.compared(found) if "rebuilt" in found else [])
    )
    return 0 if document["ok"] else 1


@cache.command(
    "gc",
    epilog=examples("trtbuild cache gc --max-size 50GiB", "trtbuild cache gc --dir /srv/trtbuild --max-age 30d"),
)
@click.option("--max-size", metavar="SIZE", help="Keep at most this much, such as 50GiB. Default: what is configured.")
@click.option("--max-age", metavar="AGE", help="Remove what was not used for this long, such as 30d or 12h.")
@click.option("--dir", "root", metavar="DIR", help="Collect this directory: a shared one, or that of an nginx.")
@click.option("--grace", metavar="AGE", help="With --dir: leave alone what is younger. Default and advice: 1h.")
@click.option("--lock", "locks", multiple=True, metavar="FILE", help="Keep what this lock file names, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@common
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

    Never what a running build uses, nor what trtbuild.lock names. Without a size and an age only what nothing needs.

    A shared directory (--dir) is collected in steps: files that no record names are removed by the third collection
    that finds them so. Run it every hour or day, on the machine that has the disk.
    """
    from trtbuild.driver.cache import housekeeping

    document = housekeeping.collect(
        request(flags), max_size, max_age, dry_run=dry_run, directory=root, grace=grace, locks=locks
    )
    show.document(flags, document, caches.collected)
    return 0


@cache.command("keygen")
@click.option("--name", default="ci", show_default=True, metavar="NAME", help="The name of the key.")
@click.option("--out", metavar="FILE", help="Where the private key goes. Default: beside the configuration file.")
@common
def keygen(name: str, out: str | None, flags: Flags) -> int:
    """Make a key pair that signs build results.

    The private key goes to a file of its own, which is never replaced. What is printed is for those who trust it.
    """
    import os

    from trtbuild.driver.cache import keygen as making

    show.document(flags, making.keygen(name, out, os.environ), caches.key_made)
    return 0


@cache.command("push", epilog=examples("trtbuild cache push", "trtbuild cache push vit --target ada --remote team"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--remote", metavar="NAME", help="Only to this remote. Default: all that may be written.")
@common
def push(models: tuple[str, ...], remote: str | None, flags: Flags) -> int:
    """Send the records of MODELS to the remotes.

    They are all that a build goes by; without MODELS, those of all models. Only what is not there yet is moved. Exits
    with status 1 if something could not be sent, or is not built.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import transfer

    with transfers.progress(flags) as told:
        document = transfer.push(request(flags, models), remote, told)
    show.document(flags, document, transfers.pushed)
    return 0 if document["ok"] else 1


@cache.command("pull", epilog=examples("trtbuild cache pull", "trtbuild cache pull vit --target ada --remote team"))
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--remote", metavar="NAME", help="Only from this remote. Default: all that may be read.")
@common
def pull(models: tuple[str, ...], remote: str | None, flags: Flags) -> int:
    """Bring the records of MODELS from the remotes.

    They are all that a build goes by; without MODELS, those of all models. Nothing is built, and neither torch nor
    TensorRT is needed. Exits with status 1, and the list, if there is something that no remote has.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import transfer

    with transfers.progress(flags) as told:
        document = transfer.pull(request(flags, models), remote, told)
    show.document(flags, document, transfers.pulled)
    return 0 if document["ok"] else 1


@cache.command(
    "export",
    epilog=examples("trtbuild cache export vit.bundle vit --target ada", "trtbuild cache export all.bundle --all"),
)
@click.argument("file", shell_complete=completing.file)
@click.argument("models", nargs=-1, shell_complete=completing.models)
@click.option("--all", "everything", is_flag=True, help="Export the whole local cache, whatever the manifests say.")
@common
def export(file: str, models: tuple[str, ...], everything: bool, flags: Flags) -> int:
    """Write the records of MODELS to one FILE.

    They are all that a build goes by; without MODELS, those of all models. It is for machines with no network: there,
    trtbuild cache import, and a build runs nothing.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import bundles

    if everything and (models or flags.get("targets")):
        raise UsageError("--all is the whole cache", hint="leave out --all, or the models and targets")
    asked, path = request(flags, models), Path(file)
    with transfers.progress(flags) as told:
        document = bundles.export_all(asked, path, told) if everything else bundles.export_models(asked, path, told)
    show.document(flags, document, transfers.exported)
    return 0


@cache.command("import")
@click.argument("file", shell_complete=completing.file)
@common
def import_(file: str, flags: Flags) -> int:
    """Import a FILE that trtbuild cache export wrote.

    All of it is checked before any of it is used. Exits with status 1 if some of it is not trusted here.
    """
    from trtbuild.cli.screens import transfers
    from trtbuild.driver.cache import bundles

    with transfers.progress(flags) as told:
        document = bundles.import_bundle(request(flags), Path(file), told)
    show.document(flags, document, transfers.imported)
    return 0 if document["ok"] else 1
