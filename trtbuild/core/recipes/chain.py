"""Looks up a trace, whose dependencies are discovered only by running it, through a chain of links.

Rules
1. The declared parts lead to the first dependencies to observe. These observations lead to further dependencies, or to the
   record. A link is a record of stage ``trace-link``. Its recipe has the declared parts and the observations so far, and
   its only output (`next`) names the dependencies to observe next.
2. The next dependency of user code is assumed to follow from everything that the code has read before. So each of the first
   links names one dependency, in the order of discovery, and a link is never out of date: other content leads to another
   link. After `SINGLE` links, each link names twice as many dependencies as the link before it, so that thousands of
   files need a few dozen lookups.
3. Links are write-once. A trace that discovered its dependencies in another order follows the existing links, adds the
   dependencies that they name, and extends the chain at its end. Additional dependencies are safe: at worst a step
   runs again without need.
4. If a link and a record have the same parts, the link wins, because the longer chain has more dependencies. If two builds
   write the same link, the first link wins.
5. A link that names no new dependency is damaged, and counts as missing.
6. The first link that a trace adds also names the dependencies that came after it (`Ahead`). This is only a hint: if links
   are in a remote, the links that are probably needed next can be fetched together.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from trtbuild.core.recipes import keys
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.values.encoding import Value

#: The number of first links that name a single dependency each.
SINGLE = 48

Declared = Sequence[tuple[str, Value]]

#: Returns the dependencies that the link with this recipe names, or None if there is no such link.
ReadLink = Callable[[Recipe], "Sequence[Dependency] | None"]
Observe = Callable[[Dependency], str]

#: Publishes a link: its recipe, the dependencies that it names, and the dependencies that came after them.
WriteLink = Callable[[Recipe, "Sequence[Dependency]", "Sequence[Dependency]"], None]

#: Returns the dependencies that came after a link, or nothing if fetching links together saves no time.
Ahead = Callable[[Recipe], "Sequence[Dependency]"]
#: Takes the links that are likely to be read next.
Expect = Callable[["Callable[[], Iterable[Recipe]]"], None]


def link_recipe(declared: Declared, seen: Sequence[Observation]) -> Recipe:
    """The recipe of the link that follows the observations `seen`."""
    trace = keys.trace(declared, seen)
    return Recipe("trace-link", trace.version, trace.parts)


def follow(
    declared: Declared,
    read_link: ReadLink,
    observe: Observe,
    ahead: Ahead = lambda link: (),
    expect: Expect = lambda links: None,
) -> tuple[Observation, ...]:
    """The dependencies that the chain names, each with its current observation. They are parts of the trace's key."""
    seen: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    links = 0
    while named := _new(read_link(link), seen):
        links += 1
        rest = ahead(link)
        seen.update((dependency, observe(dependency)) for dependency in named)
        link = link.followed_by([(dependency.part, seen[dependency]) for dependency in named])
        if rest:
            expect(partial(_likely_links, link, _new(rest, seen), links, observe))
    return tuple(itertools.starmap(Observation, seen.items()))


def _likely_links(link: Recipe, rest: Sequence[Dependency], links: int, observe: Observe) -> list[Recipe]:
    """`link` and the links after it, if they name the dependencies `rest` in the groups that `extend` makes."""
    likely = [link]
    while rest:
        group = rest[: _width(links)]
        rest, links = rest[len(group) :], links + 1
        link = link.followed_by([(dependency.part, observe(dependency)) for dependency in group])
        likely.append(link)
    return likely


def _width(links: int) -> int:
    """The number of dependencies that a link names if `links` links come before it (rule 2)."""
    return 1 if links < SINGLE else 2 ** min(links - SINGLE + 1, 16)


def extend(
    declared: Declared,
    observations: Sequence[Observation],
    read_link: ReadLink,
    write_link: WriteLink,
    observe: Observe,
) -> tuple[Observation, ...]:
    """Extend the chain by the `observations` of a trace, in order of discovery.

    Returns the observations for the trace's key. `write_link` is called only if `read_link` finds no valid link. It
    publishes the link write-once, and replaces a damaged link. If another build published the link first, `read_link` then
    returns that build's link, and the chain continues from it.
    """
    known = {observation.dependency: observation.seen for observation in observations}
    seen: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    links = 0
    hint_written = False
    while True:
        named = _new(read_link(link), seen)
        if not named:
            missing = _new(known, seen)
            if not missing:
                return tuple(itertools.starmap(Observation, seen.items()))
            group = missing[: _width(links)]
            write_link(link, group, () if hint_written else missing[len(group) :])
            hint_written = True
            named = _new(read_link(link), seen) or group
        links += 1
        for dependency in named:
            seen[dependency] = known[dependency] if dependency in known else observe(dependency)
        link = link.followed_by([(dependency.part, seen[dependency]) for dependency in named])


def _new(named: Iterable[Dependency] | None, seen: Mapping[Dependency, str]) -> list[Dependency]:
    """The dependencies in `named` that are not in `seen`, without duplicates."""
    return [dependency for dependency in dict.fromkeys(named or ()) if dependency not in seen]


def link_bytes(named: Sequence[Dependency]) -> bytes:
    """The `next` output of a link."""
    return json.dumps([dependency.part for dependency in named]).encode()


def parse_link(data: bytes) -> tuple[Dependency, ...]:
    """The dependencies in the `next` output of a link. Raises ValueError if `data` is not such an output."""
    try:
        names = json.loads(data)
    except RecursionError:
        raise ValueError("a link is a list of names") from None
    if not isinstance(names, list) or not names:
        raise ValueError("a link names at least one dependency")
    return tuple(Dependency.from_part(str(name)) for name in names)
