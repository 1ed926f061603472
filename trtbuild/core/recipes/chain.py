"""Looks up the record of a step that runs user code (trace, calibrate).

The dependencies of such a step, which are in its key, are known only after it has run. So a chain of links leads to the
record. For example, the first link names ``net.py``. The digest of ``net.py`` leads to a link that names ``helper.py``,
which the code of ``net.py`` imports.

Rules
1. A link is a record of stage ``trace-link`` or ``calibrate-link``. Its recipe has the declared parts of the step (known
   before the code runs) and the observations so far. Its only output (`next`) names the dependencies to observe next.
   The chain ends when there is no link with the observations so far in its recipe. These observations are in the key of
   the step's record.
2. The next dependency of user code is assumed to follow from everything that the code has read before. So each of the first
   links names one dependency, in the order of discovery. A link is never out of date, because other content leads to
   another link. After `SINGLE_LINKS` links, each link names twice as many dependencies as the link before it (at most
   65,536). So thousands of files need only a few dozen lookups.
3. Links are write-once. If a step discovered its dependencies in another order, it follows the existing links, and extends
   the chain at its end. The dependencies that these links name are then in the step's key, too. Additional dependencies are
   safe, because at worst a step runs again without need.
4. If a link and a record have the same parts, the link is followed, because the longer chain has more dependencies. If two
   builds write the same link, the first link stays.
5. A link that names no new dependency is damaged, and counts as missing.
6. The first link that a step adds also lists the dependencies that the links after it will name (`WriteLink`,
   `ReadLaterDependencies`). With this list, the links that are probably needed next can be fetched from a remote together.
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

#: Publishes a link, from its recipe, the dependencies that it names, and those that came after them (rule 6).
WriteLink = Callable[[Recipe, "Sequence[Dependency]", "Sequence[Dependency]"], None]

#: Returns the dependencies that came after those of a link (rule 6). The result may be empty if fetching links together
#: saves no time.
ReadLaterDependencies = Callable[[Recipe], "Sequence[Dependency]"]
#: Fetches the links that are likely to be read next, if this saves time. Its argument is a function that returns them.
PrefetchLinks = Callable[["Callable[[], Iterable[Recipe]]"], None]


def link_recipe(declared: Declared, observations: Sequence[Observation]) -> Recipe:
    """The recipe of the link to which these observations lead."""
    return link_of(keys.user_code(declared, observations))


def link_of(recipe: Recipe) -> Recipe:
    """The recipe of the link with the same parts as the recipe of a step."""
    return Recipe(f"{recipe.stage}-link", recipe.version, recipe.parts)


def follow(
    declared: Declared,
    read_link: ReadLink,
    observe: Observe,
    read_later: ReadLaterDependencies = lambda link: (),
    prefetch: PrefetchLinks = lambda links: None,
) -> tuple[Observation, ...]:
    """The current observations of all dependencies that the chain names. They are parts of the step's key."""
    states: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    link_count = 0
    while dependencies := _unseen(read_link(link), states):
        link_count += 1
        later = read_later(link)
        states.update((dependency, observe(dependency)) for dependency in dependencies)
        link = link.followed_by([(dependency.part, states[dependency]) for dependency in dependencies])
        if later:
            prefetch(partial(_likely_links, link, _unseen(later, states), link_count, observe))
    return tuple(itertools.starmap(Observation, states.items()))


def _likely_links(link: Recipe, later: Sequence[Dependency], link_count: int, observe: Observe) -> list[Recipe]:
    """`link`, and the links that `extend` would write after it for the dependencies `later`.

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

    Returns the observations for the step's key. `write_link` must replace a damaged link, and keep a valid link that
    another build has published in the meantime. The chain continues from the link that `read_link` then returns.
    """
    state_of = {observation.dependency: observation.state for observation in observations}
    states: dict[Dependency, str] = {}
    link = link_recipe(declared, ())
    link_count = 0
    has_listed_later = False  # whether a new link lists the dependencies that come later (rule 6)
    while True:
        dependencies = _unseen(read_link(link), states)
        if not dependencies:
            missing = _unseen(state_of, states)
            if not missing:
                return tuple(itertools.starmap(Observation, states.items()))
            group = missing[: _link_size(link_count)]
            write_link(link, group, () if has_listed_later else missing[len(group) :])
            has_listed_later = True
            dependencies = _unseen(read_link(link), states) or group
        link_count += 1
        for dependency in dependencies:
            states[dependency] = state_of[dependency] if dependency in state_of else observe(dependency)
        link = link.followed_by([(dependency.part, states[dependency]) for dependency in dependencies])


def _unseen(dependencies: Iterable[Dependency] | None, seen: Mapping[Dependency, str]) -> list[Dependency]:
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
