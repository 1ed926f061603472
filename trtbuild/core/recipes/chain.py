"""Looking up a step whose dependencies are discovered only by running it.

Rules
1. What is declared leads to the first paths to look at; what is seen there leads to further paths, or to the record.
   A link is a record of stage ``trace-link``: its recipe is the declared parts and the observations so far, its one
   output (`next`) names the dependencies to observe next.
2. Running user code is taken to be a function of what it has read so far. So the first links hold one dependency each,
   in the order in which they were met, and no link is ever stale: another content is another link. After
   `SINGLE` links they grow by doubling, so that thousands of files are a few dozen look-ups.
3. Links are write-once. A trace that met its dependencies in another order follows the links that are there, adding
   what they ask for (a superset is sound: at worst something is built again), and extends their end.
4. A link at a place wins over a record there: the longer chain knows more. So does the link of whoever wrote first.
5. A link that names nothing new leads nowhere: it is damaged, and taken as none.
6. The first link that a trace adds says what came after it (`Ahead`). It is a hint: where links are far away, those that
   are likely to be read are asked for at once, and not one after another. What they say is decided by reading them.
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

#: How many links hold a single dependency.
SINGLE = 48

Declared = Sequence[tuple[str, Value]]

#: Gives the dependencies that the link with this recipe names, or None.
ReadLink = Callable[[Recipe], "Sequence[Dependency] | None"]
Observe = Callable[[Dependency], str]

#: Publishes a link, with the dependencies that are known to come after those that it names.
WriteLink = Callable[[Recipe, "Sequence[Dependency]", "Sequence[Dependency]"], None]

#: What is said to come after a link, when asking for it at once saves time; else nothing.
Ahead = Callable[[Recipe], "Sequence[Dependency]"]
#: Hears of links that are likely to be read next.
Expect = Callable[["Callable[[], Iterable[Recipe]]"], None]


def link_recipe(declared: Declared, seen: Sequence[Observation]) -> Recipe:
    """The recipe of the link that follows after `seen`."""
    parts = keys.trace(declared, seen)
    return Recipe("trace-link", parts.version, parts.parts)


def follow(
    declared: Declared,
    read_link: ReadLink,
    observe: Observe,
    ahead: Ahead = lambda link: (),
    expect: Expect = lambda links: None,
) -> tuple[Observation, ...]:
    """What the chain says has to be looked at, with what is there now. The trace's key is made of it."""
    seen: dict[Dependency, str] = {}
    here = link_recipe(declared, ())
    links = 0
    while named := _new(read_link(here), seen):
        links += 1
        rest = ahead(here)
        seen.update((dependency, observe(dependency)) for dependency in named)
        here = here.followed_by([(dependency.part, seen[dependency]) for dependency in named])
        if rest:
            expect(partial(_likely, here, _new(rest, seen), links, observe))
    return tuple(itertools.starmap(Observation, seen.items()))


def _likely(here: Recipe, rest: Sequence[Dependency], links: int, observe: Observe) -> list[Recipe]:
    """The links from `here` on, if they name `rest` as `extend` divides it up."""
    likely = [here]
    while rest:
        mine = rest[: _width(links)]
        rest, links = rest[len(mine) :], links + 1
        here = here.followed_by([(dependency.part, observe(dependency)) for dependency in mine])
        likely.append(here)
    return likely


def _width(links: int) -> int:
    """How many dependencies the link after so many others names (rule 2)."""
    return 1 if links < SINGLE else 2 ** min(links - SINGLE + 1, 16)


def extend(
    declared: Declared,
    found: Sequence[Observation],
    read_link: ReadLink,
    write_link: WriteLink,
    observe: Observe,
) -> tuple[Observation, ...]:
    """Make the chain lead to what a trace has `found` (in order of discovery). Returns what its key is made of.

    `write_link` is called only where `read_link` gives nothing that can be used: it publishes a link write-once, and
    replaces one that is there and damaged. When another build was faster, `read_link` gives that build's link
    afterwards, and the chain goes on from there.
    """
    known = {observation.dependency: observation.seen for observation in found}
    seen: dict[Dependency, str] = {}
    here = link_recipe(declared, ())
    links = 0
    told = False
    while True:
        named = _new(read_link(here), seen)
        if not named:
            missing = _new(known, seen)
            if not missing:
                return tuple(itertools.starmap(Observation, seen.items()))
            mine = missing[: _width(links)]
            write_link(here, mine, () if told else missing[len(mine) :])
            told = True
            named = _new(read_link(here), seen) or mine
        links += 1
        for dependency in named:
            seen[dependency] = known[dependency] if dependency in known else observe(dependency)
        here = here.followed_by([(dependency.part, seen[dependency]) for dependency in named])


def _new(named: Iterable[Dependency] | None, seen: Mapping[Dependency, str]) -> list[Dependency]:
    """Those of `named` that are not in `seen`, once each."""
    return [dependency for dependency in dict.fromkeys(named or ()) if dependency not in seen]


def link_bytes(named: Sequence[Dependency]) -> bytes:
    """The `next` output of a link."""
    return json.dumps([dependency.part for dependency in named]).encode()


def parse_link(data: bytes) -> tuple[Dependency, ...]:
    """Raises ValueError when `data` is no link."""
    try:
        names = json.loads(data)
    except RecursionError:
        raise ValueError("a link is a list of names") from None
    if not isinstance(names, list) or not names:
        raise ValueError("a link names at least one dependency")
    return tuple(Dependency.from_part(str(name)) for name in names)
