"""Looks up the record of a step that runs user code. The dependencies of such a step are known only after it has run, so a
chain of links leads to the record.

Rules
1. The declared parts lead to the first dependencies to observe. These observations lead to further dependencies, or to the
   record. A link is a record of stage ``trace-link`` or ``calibrate-link``. Its recipe has the declared parts and the
   observations so far, and its only output (`next`) names the dependencies to observe next.
2. The next dependency of user code is assumed to follow from everything that the code has read before. So each of the first
   links names one dependency, in the order of discovery. A link is never out of date, because other content leads to
   another link. After `SINGLE_LINKS` links, each link names twice as many dependencies as the link before it (at most
   65,536), so that thousands of files need a few dozen lookups.
3. Links are write-once. A step that discovered its dependencies in another order follows the existing links, adds the
   dependencies that they name, and extends the chain at its end. Additional dependencies are safe, because at worst a
   step runs again without need.
4. If a link and a record have the same parts, the link wins, because the longer chain has more dependencies. If two builds
   write the same link, the first link wins.
5. A link that names no new dependency is damaged, and counts as missing.
6. The first link that a step adds also names the dependencies that the step discovered later (`WriteLink`,
   `ReadLaterDependencies`). These names are only a hint. With them, the links that are probably needed next can be fetched
   from a remote together.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from trtbuild.core.recipes import keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe

#: The number of first links that name a single dependency each.
SINGLE_LINKS = 48

#: Returns the dependencies that the link with this recipe names, or None if there is no such link.
ReadLink = Callable[[Recipe], "Sequence[Dependency] | None"]
#: Returns the current state of a dependency.
Observe = Callable[[Dependency], str]

#: Publishes a link: its recipe, the dependencies that it names, and the dependencies that came after them.
WriteLink = Callable[[Recipe, "Sequence[Dependency]", "Sequence[Dependency]"], None]

#: Returns the dependencies that came after a link, or an empty sequence if fetching links together saves no time.
ReadLaterDependencies = Callable[[Recipe], "Sequence[Dependency]"]
#: Takes a function that returns the links that are likely to be read next.
ExpectLinks = Callable[["Callable[[], Iterable[Recipe]]"], None]


def link_recipe(declared: Declared, observations: Sequence[Observation]) -> Recipe:
    """The recipe of the link that follows these observations."""
    return link_of(keys.user_code(declared, observations))


def link_of(recipe: Recipe) -> Recipe:
    """The recipe of the link with the same parts as the recipe of a step."""
    return Recipe(f"{recipe.stage}-link", recipe.version, recipe.parts)


def follow(
    declared: Declared,
    read_link: ReadLink,
    observe: Observe,
    read_later: ReadLaterDependencies = lambda link: (),
    expect: ExpectLinks = lambda links: None,
) -> tuple[Observation, ...]:
    """The dependencies that the chain names, each with its current observation. They are parts of the step's key."""
    states: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    link_count = 0
    while dependencies := _unseen(read_link(link), states):
        link_count += 1
        later = read_later(link)
        states.update((dependency, observe(dependency)) for dependency in dependencies)
        link = link.followed_by([(dependency.part, states[dependency]) for dependency in dependencies])
        if later:
            expect(partial(_likely_links, link, _unseen(later, states), link_count, observe))
    return tuple(itertools.starmap(Observation, states.items()))


def _likely_links(link: Recipe, later: Sequence[Dependency], link_count: int, observe: Observe) -> list[Recipe]:
    """`link`, and the links that probably follow it: those that `extend` would write for the dependencies `later`.

    `link_count` is the number of links before `link`."""
    likely = [link]
    while later:
        group = later[: _link_size(link_count)]
        later, link_count = later[len(group) :], link_count + 1
        link = link.followed_by([(dependency.part, observe(dependency)) for dependency in group])
        likely.append(link)
    return likely


def _link_size(link_count: int) -> int:
    """The number of dependencies that a link names if `link_count` links come before it (rule 2)."""
    return 1 if link_count < SINGLE_LINKS else 2 ** min(link_count - SINGLE_LINKS + 1, 16)


def extend(
    declared: Declared,
    observations: Sequence[Observation],
    read_link: ReadLink,
    write_link: WriteLink,
    observe: Observe,
) -> tuple[Observation, ...]:
    """Extend the chain by the `observations` of a step, in order of discovery.

    Returns the observations for the step's key. `write_link` is called only if `read_link` finds no valid link. It
    publishes the link write-once, and replaces a damaged link. If another build published the link first, `read_link` then
    returns that build's link, and the chain continues from it.
    """
    state_of = {observation.dependency: observation.state for observation in observations}
    states: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    link_count = 0
    hint_written = False
    while True:
        dependencies = _unseen(read_link(link), states)
        if not dependencies:
            missing = _unseen(state_of, states)
            if not missing:
                return tuple(itertools.starmap(Observation, states.items()))
            group = missing[: _link_size(link_count)]
            write_link(link, group, () if hint_written else missing[len(group) :])
            hint_written = True
            dependencies = _unseen(read_link(link), states) or group
        link_count += 1
        for dependency in dependencies:
            states[dependency] = state_of[dependency] if dependency in state_of else observe(dependency)
        link = link.followed_by([(dependency.part, states[dependency]) for dependency in dependencies])


def _unseen(dependencies: Iterable[Dependency] | None, seen: Mapping[Dependency, str]) -> list[Dependency]:
    """The dependencies in `dependencies` that are not in `seen`, without duplicates."""
    return [dependency for dependency in dict.fromkeys(dependencies or ()) if dependency not in seen]


def link_bytes(dependencies: Sequence[Dependency]) -> bytes:
    """The `next` output of a link."""
    return json.dumps([dependency.part for dependency in dependencies]).encode()


def parse_link(data: bytes) -> tuple[Dependency, ...]:
    """The dependencies in the `next` output of a link. Raises ValueError if `data` is not such an output."""
    try:
        names = json.loads(data)
    except RecursionError:
        raise ValueError("a link is a list of names") from None
    if not isinstance(names, list) or not names:
        raise ValueError("a link names at least one dependency")
    return tuple(Dependency.from_part(str(name)) for name in names)
