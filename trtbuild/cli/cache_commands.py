"""``trtbuild cache``: what there is, whether it is sound, and collecting what is not used."""

from __future__ import annotations

from typing import Any

import click

from trtbuild.cli import caches, show
from trtbuild.cli.options import common, request
from trtbuild.cli.sections import Sections, examples

Flags = dict[str, Any]


@click.group(cls=Sections, epilog=examples("trtbuild cache stats", "trtbuild cache gc --max-size 50GiB --dry-run"))
@common
def cache(flags: Flags) -> None:
    """Look at the cache, check it, collect what is not used.

    It is cache/ of the project, or what $TRTBUILD_CACHE_DIR names.
    """


@cache.command("stats")
@common
def stats(flags: Flags) -> int:
    """How much there is, by stage, and what chunking saves."""
    from trtbuild.driver import housekeeping

    show.document(flags, housekeeping.stats(request(flags)), caches.stats)
    return 0


@cache.command("verify")
@common
def verify(flags: Flags) -> int:
    """Read everything; what is damaged goes to quarantine."""
    from trtbuild.driver import housekeeping

    document = housekeeping.verify(request(flags))
    show.document(flags, document, caches.verified)
    return 0 if document["ok"] else 1


@cache.command("gc")
@click.option("--max-size", metavar="SIZE", help="Keep at most this much, such as 50GiB.")
@click.option("--max-age", metavar="AGE", help="Remove what was not used for this long, such as 30d or 12h.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@common
def gc(max_size: str | None, max_age: str | None, dry_run: bool, flags: Flags) -> int:
    """Remove the least recently used.

    Never what a running build uses. Without --max-size and --max-age only what nothing needs is removed.
    """
    from trtbuild.driver import housekeeping

    document = housekeeping.collect(request(flags), max_size, max_age, dry_run=dry_run)
    show.document(flags, document, caches.collected)
    return 0
