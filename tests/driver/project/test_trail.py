"""Chains are followed by what is remembered of them, to where the links themselves lead, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild.core.planning.graph import Reason, Step
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.dependency import ABSENT, Dependency, Observation
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project import trail as trails
from trtbuild.driver.project.history import History
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.trail import Trail
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore

DECLARED: chain.Declared = (("source", "net:build"),)
FILES = [Dependency("file", f"{number}.py") for number in range(60)]


class Counting(LocalStore):
    """A store that counts the records that are read."""

    read = 0

    def get_record(self, key: str, wanted: object = None) -> Record | None:
        self.read += 1
        return super().get_record(key)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "cache")


class World:
    """A project whose trace reads all of `FILES`."""

    def __init__(self, tmp_path: Path, store: LocalStore) -> None:
        self.state = tmp_path / ".trtbuild"
        self.store = store
        self.contents = {file: f"content of {file.name}" for file in FILES}

    def look(self, *, trail: bool = True, believed: str = "") -> StoreLookups:
        def observe(dependency: Dependency) -> str:
            return self.contents.get(dependency, ABSENT)

        digests = FileDigests(None)
        return StoreLookups(
            LayeredStore(self.store),
            self.state.parent,
            History(self.state),
            observe,
            digests.sha256,
            trail=Trail(self.state, believed) if trail else None,
        )

    def trace(self) -> None:
        look = self.look()
        found = [Observation(file, self.contents[file]) for file in FILES]
        seen = chain.extend(DECLARED, found, look.read_link, look.write_link, look.observe)
        self.store.put_record(Record(keys.trace(DECLARED, seen), {"graph": self.store.put_bytes(b"graph")}))

    def follow(self, *, trail: bool = True, believed: str = "") -> tuple[Observation, ...]:
        look = self.look(trail=trail, believed=believed)
        seen = chain.follow(DECLARED, look.read_link, look.observe)
        look.save_trail()
        return seen


@pytest.fixture
def world(tmp_path: Path, store: Counting) -> World:
    world = World(tmp_path, store)
    world.trace()
    return world


def test_a_chain_that_was_followed_is_not_read_again(world: World, store: Counting) -> None:
    first = world.follow()
    assert [seen.dependency for seen in first] == FILES
    store.read = 0
    assert world.follow() == first
    assert store.read == 1, "only the end of the chain is looked for"
    assert world.follow(trail=False) == first
    assert store.read > 40


def test_a_chain_is_read_again_when_others_are_believed(world: World, store: Counting) -> None:
    """Links that do not count any more have to be seen as missing, so that they are signed and others are led on, too."""
    world.follow()
    store.read = 0
    assert len(world.follow(believed="ci")) == 60
    assert store.read > 40
    store.read = 0
    world.follow(believed="ci")
    assert store.read == 1


def test_an_edit_leads_to_where_the_links_lead(world: World, store: Counting) -> None:
    world.follow()
    world.contents[FILES[5]] = "edited"
    assert len(world.follow()) == 6
    assert world.follow() == world.follow(trail=False)
    world.trace()
    assert world.follow() == world.follow(trail=False)
    assert len(world.follow()) == 60
    world.contents[FILES[5]] = "content of 5.py"
    store.read = 0
    assert len(world.follow()) == 60
    assert store.read == 1, "the links of the old content are remembered too"


def test_a_link_that_was_collected_ends_the_chain(world: World, store: Counting) -> None:
    world.follow()
    gone = chain.link_recipe(DECLARED, [Observation(file, world.contents[file]) for file in FILES[:10]])
    entry = store.root / "ac" / gone.key[:2] / gone.key
    entry.unlink()
    assert len(world.follow()) == 10 == len(world.follow(trail=False))
    world.trace()
    assert len(world.follow()) == 60


def test_links_that_are_followed_count_as_used(world: World, store: Counting) -> None:
    world.follow()
    before = {path: path.stat().st_mtime_ns for path in (store.root / "ac").glob("*/*")}
    world.follow()
    touched = [path for path, mtime_ns in before.items() if path.stat().st_mtime_ns != mtime_ns]
    assert len(touched) >= 48


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "other"}', '{"schema": "trtbuild.trail/1", "names": [1], "links": {}}', "\udcff"],
)
def test_without_a_trail_the_answer_is_the_same(world: World, text: str) -> None:
    first = world.follow()
    (world.state / "trail.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert world.follow() == first
    (world.state / "trail.json").unlink()
    assert world.follow() == first


def test_a_trail_that_lies_leads_to_no_record(world: World, store: Counting) -> None:
    first = world.follow()
    path = world.state / "trail.json"
    document = json.loads(path.read_bytes())
    for names in (["file:other.py"] * 60, ["nonsense"] * 60, []):
        path.write_text(json.dumps({**document, "names": names}))
        seen = world.look()
        led = chain.follow(DECLARED, seen.read_link, seen.observe)
        assert led == first or store.get_record(keys.trace(DECLARED, led).key) is None


def test_a_trace_that_only_the_links_lead_to_is_found_before_it_is_run(world: World) -> None:
    first = world.follow()
    path = world.state / "trail.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "names": ["file:other.py"] * 60}))
    look = world.look()
    led = keys.trace(DECLARED, chain.follow(DECLARED, look.read_link, look.observe))
    assert look.record(led.key) is None
    plan = SimpleNamespace(declared=DECLARED)
    step = Step("net/trace", "net", "trace", "run", Reason("evicted", "no longer in the cache"), recipe=led)
    found = look.made_meanwhile(plan, step)  # type: ignore[arg-type]
    assert found is not None
    assert found.recipe.key == keys.trace(DECLARED, first).key
    assert chain.follow(DECLARED, look.read_link, look.observe) == first
    look.save_trail()
    assert world.follow() == first


def test_the_trail_stays_within_its_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.follow()
    links = len(json.loads((world.state / "trail.json").read_bytes())["links"])
    monkeypatch.setattr(trails, "MAX_LINKS", links + 10)
    world.contents[FILES[0]] = "edited"
    world.trace()
    world.follow()
    assert len(json.loads((world.state / "trail.json").read_bytes())["links"]) <= links


def test_a_state_that_cannot_be_written_is_no_error(world: World) -> None:
    world.state.write_text("a file where the directory should be")
    assert len(world.follow()) == 60
