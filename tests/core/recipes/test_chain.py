"""Looking up the record of a trace through a chain of links. A link is a record that names the files to look at next.

In the simulated traces, the content of each file names the files that user code reads next."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtbuild.core.recipes import keys
from trtbuild.core.recipes.chain import SINGLE_LINKS, extend, follow, link_bytes, link_recipe, parse_link
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import ABSENT, Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe

DECLARED = Declared("trace", (("source", "net:build"),))


class FakeTraces:
    """A cache of traces and links, and a simulated `trace`. With `order`, user code reads its files in a random order."""

    def __init__(self, files: dict[str, str], order: random.Random | None = None) -> None:
        self.files = files
        self.links: dict[str, tuple[Dependency, ...]] = {}
        self.traces: dict[str, str] = {}
        self.order = order
        self.lookup_count = 0

    def observe(self, dependency: Dependency) -> str:
        return self.files.get(dependency.name, ABSENT)

    def read_link(self, recipe: Recipe) -> Sequence[Dependency] | None:
        self.lookup_count += 1
        return self.links.get(recipe.key)

    def write_link(self, recipe: Recipe, named: Sequence[Dependency], ahead: Sequence[Dependency] = ()) -> None:
        assert recipe.key not in self.links, "a link is written once"
        self.links[recipe.key] = parse_link(link_bytes(named))

    def run_user_code(self) -> tuple[list[Observation], str]:
        """Return the observations of user code, in order, and its result, which depends on the observations only."""
        waiting, observations, states = ["main"], {}, []
        while waiting:
            name = waiting.pop(self.order.randrange(len(waiting)) if self.order else 0)
            if name not in observations:
                observations[name] = Observation(Dependency("file", name), self.files.get(name, ABSENT))
                states.append(f"{name}={observations[name].state}")
                waiting += observations[name].state.split() if observations[name].state != ABSENT else []
        return list(observations.values()), "; ".join(sorted(states))

    def lookup(self) -> str | None:
        """Return the result of the recorded trace of the current files, or None."""
        return self.traces.get(keys.user_code(DECLARED, follow(DECLARED, self.read_link, self.observe)).key)

    def trace(self) -> str:
        observations, result = self.run_user_code()
        chain_observations = extend(DECLARED, observations, self.read_link, self.write_link, self.observe)
        assert {observation.dependency for observation in observations} <= {
            observation.dependency for observation in chain_observations
        }
        self.traces[keys.user_code(DECLARED, chain_observations).key] = result
        return result

    def build(self) -> bool:
        """Bring the trace up to date, and return whether it had to run. A hit must have the same result as a run."""
        result = self.lookup()
        must_run = result is None
        if must_run:
            result = self.trace()
            assert self.lookup() == result, "the new trace is not found"
        assert result == self.run_user_code()[1], "the lookup found a wrong trace"
        return must_run


NAMES = ["main", "a", "b", "c", "d", "e", "f"]
CONTENTS = st.lists(st.sampled_from([*NAMES, "v1", "v2"]), max_size=3).map(" ".join)
WORLDS = st.dictionaries(st.sampled_from(NAMES), CONTENTS)


@given(WORLDS, st.lists(st.tuples(st.sampled_from(NAMES), CONTENTS | st.none()), max_size=12))
def test_a_trace_is_found_only_if_all_files_that_it_read_are_unchanged(
    files: dict[str, str], edits: list[tuple[str, str | None]]
) -> None:
    world = FakeTraces(dict(files))
    assert world.build()
    results = {world.run_user_code()[1]}
    for name, content in edits:
        if content is None:
            world.files.pop(name, None)
        else:
            world.files[name] = content
        assert world.build() == (world.run_user_code()[1] not in results)
        results.add(world.run_user_code()[1])


@given(WORLDS, st.lists(st.tuples(st.sampled_from(NAMES), CONTENTS), max_size=12), st.randoms(use_true_random=False))
def test_with_a_varying_order_of_discovery_the_second_build_is_a_correct_hit(
    files: dict[str, str], edits: list[tuple[str, str]], order: random.Random
) -> None:
    world = FakeTraces(dict(files), order)
    world.build()
    for name, content in edits:
        world.files[name] = content
        world.build()
        assert not world.build()


@given(WORLDS, st.sampled_from(NAMES), CONTENTS)
def test_only_an_edit_of_a_file_that_was_read_is_a_miss(files: dict[str, str], name: str, content: str) -> None:
    world = FakeTraces(dict(files))
    world.build()
    read = {observation.dependency.name for observation in world.run_user_code()[0]}
    changed = world.files.get(name) != content
    world.files[name] = content
    assert (world.lookup() is None) == (name in read and changed)


def test_an_absent_file_that_was_looked_for_is_a_dependency() -> None:
    world = FakeTraces({"main": "optional"})
    world.build()
    world.files["optional"] = ""
    assert world.build()
    del world.files["optional"]
    assert not world.build()


def test_declared_parts_have_separate_chains() -> None:
    world = FakeTraces({"main": "a"})
    world.build()
    assert follow(Declared("trace", (("source", "other:build"),)), world.read_link, world.observe) == ()


def test_a_link_and_a_trace_have_different_keys() -> None:
    assert link_recipe(DECLARED, ()).key != keys.user_code(DECLARED, ()).key
    assert link_recipe(DECLARED, ()).stage == "trace-link"


@pytest.mark.parametrize("count", [1, SINGLE_LINKS, SINGLE_LINKS + 1, 5_000])
def test_thousands_of_files_need_a_few_dozen_links(count: int) -> None:
    world = FakeTraces({"main": " ".join(f"f{k}" for k in range(count))})
    world.build()
    assert len(world.links) <= SINGLE_LINKS + 14  # each later link names twice as many files as the link before it
    world.lookup_count = 0
    assert not world.build()
    assert world.lookup_count == len(world.links) + 1


def test_the_first_links_name_one_file_each() -> None:
    """After an edit, the lookup must not read files that only the old content named."""
    world = FakeTraces({"main": "a x", "a": "b", "b": "c", "c": "d", "d": ""})
    world.build()
    world.files["main"] = "other"
    observed: list[Dependency] = []

    def observe(dependency: Dependency) -> str:
        observed.append(dependency)
        return world.observe(dependency)

    follow(DECLARED, world.read_link, observe)
    assert [dependency.name for dependency in observed] == ["main"]


def observations_of(*names: str) -> list[Observation]:
    return [Observation(Dependency("file", name), f"content of {name}") for name in names]


def test_another_order_follows_the_existing_links_and_extends_the_chain() -> None:
    world = FakeTraces({name: f"content of {name}" for name in "abcd"})
    first = extend(DECLARED, observations_of("a", "b", "c"), world.read_link, world.write_link, world.observe)
    second = extend(DECLARED, observations_of("c", "d", "a"), world.read_link, world.write_link, world.observe)
    assert [o.dependency.name for o in first] == ["a", "b", "c"]
    # the second trace did not read b, but depends on it, because it follows the chain of the first trace
    assert [o.dependency.name for o in second] == ["a", "b", "c", "d"]
    assert follow(DECLARED, world.read_link, world.observe) == second


def test_a_dependency_that_was_observed_twice_counts_once() -> None:
    world = FakeTraces({"a": "content of a", "b": "content of b"})
    observations = extend(DECLARED, observations_of("a", "b", "a"), world.read_link, world.write_link, world.observe)
    assert observations == tuple(observations_of("a", "b"))
    assert keys.user_code(DECLARED, observations).key  # `key` raises an error if a part occurs twice


def test_the_state_that_the_trace_observed_is_in_the_key_not_a_later_state() -> None:
    world = FakeTraces({"a": "edited since"})
    assert extend(DECLARED, observations_of("a"), world.read_link, world.write_link, world.observe) == tuple(
        observations_of("a")
    )


def test_the_loser_of_a_race_continues_from_the_winners_link() -> None:
    world = FakeTraces({name: f"content of {name}" for name in "abz"})

    def write_after_another_build(
        recipe: Recipe, named: Sequence[Dependency], ahead: Sequence[Dependency] = ()
    ) -> None:
        if recipe.key not in world.links and not recipe.parts[1:]:
            world.write_link(recipe, [Dependency("file", "z")])  # another build was faster
        world.links.setdefault(recipe.key, tuple(named))

    observations = extend(
        DECLARED, observations_of("a", "b"), world.read_link, write_after_another_build, world.observe
    )
    assert [o.dependency.name for o in observations] == ["z", "a", "b"]
    assert follow(DECLARED, world.read_link, world.observe) == observations


def test_a_link_that_names_nothing_new_ends_the_chain_and_is_replaced() -> None:
    world = FakeTraces({"a": "content of a", "b": "content of b"})
    extend(DECLARED, observations_of("a"), world.read_link, world.write_link, world.observe)
    damaged = link_recipe(DECLARED, observations_of("a"))
    world.links[damaged.key] = (Dependency("file", "a"), Dependency("file", "a"))
    assert follow(DECLARED, world.read_link, world.observe) == tuple(observations_of("a"))

    def replace_link(recipe: Recipe, named: Sequence[Dependency], ahead: Sequence[Dependency] = ()) -> None:
        world.links[recipe.key] = tuple(named)

    observations = extend(DECLARED, observations_of("a", "b"), world.read_link, replace_link, world.observe)
    assert observations == tuple(observations_of("a", "b")) == follow(DECLARED, world.read_link, world.observe)


def test_a_link_that_names_one_dependency_twice_is_followed_once() -> None:
    world = FakeTraces({"a": "content of a"})
    world.links[link_recipe(DECLARED, ()).key] = (Dependency("file", "a"), Dependency("file", "a"))
    assert follow(DECLARED, world.read_link, world.observe) == tuple(observations_of("a"))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"[1]", b'["file:"]', b'["socket:x"]', b'["file"]', b"\xff", b"[" * 100_000]
)
def test_rejects_invalid_links(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_link(data)


@given(
    st.lists(
        st.builds(Dependency, st.sampled_from(["file", "listing", "distribution", "environment"]), st.text(min_size=1)),
        min_size=1,
    )
)
def test_a_link_is_read_back_from_its_document(named: list[Dependency]) -> None:
    assert parse_link(link_bytes(named)) == tuple(named)


def test_the_first_new_link_lists_all_later_dependencies_so_that_their_links_can_be_fetched_together() -> None:
    names = [f"f{number}" for number in range(SINGLE_LINKS + 9)]
    links: dict[str, tuple[Dependency, ...]] = {}
    hints: dict[str, Sequence[Dependency]] = {}
    requested: list[str] = []
    prefetched: list[str] = []

    def write(recipe: Recipe, named: Sequence[Dependency], ahead: Sequence[Dependency]) -> None:
        links[recipe.key] = tuple(named)
        hints[recipe.key] = ahead

    def read(recipe: Recipe) -> Sequence[Dependency] | None:
        requested.append(recipe.key)
        return links.get(recipe.key)

    extend(DECLARED, observations_of(*names), read, write, lambda dependency: "new")
    assert [len(hint) for hint in hints.values() if hint] == [len(names) - 1]
    requested.clear()
    state_of = {observation.dependency: observation.state for observation in observations_of(*names)}
    follow(
        DECLARED,
        read,
        state_of.__getitem__,
        lambda link: hints[link.key],
        lambda likely_links: prefetched.extend(recipe.key for recipe in likely_links()),
    )
    assert requested[1:] == prefetched, (
        "each link after the first, and the lookup at the end of the chain, which finds no link"
    )
