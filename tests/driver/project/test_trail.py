"""The trail is a local copy of links (`core.recipes.chain`).

With the trail, a plan reads fewer records and has the same observations."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtbuild.core.planning.graph import Reason, Step, UserCode
from trtbuild.core.recipes import chain, keys
from trtbuild.core.recipes.declared import Declared
from trtbuild.core.recipes.dependency import ABSENT, Dependency, Observation
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project import trail as trails
from trtbuild.driver.project.history import History
from trtbuild.driver.project.lookups import StoreLookups
from trtbuild.driver.project.trail import Trail
from trtbuild.store.digests.fingerprint import FileDigests
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore

DECLARED = Declared("trace", (("source", "net:build"),))
FILES = [Dependency("file", f"{number}.py") for number in range(60)]


class CountingStore(LocalStore):
    records_read = 0

    def get_record(self, key: str, wanted: object = None) -> Record | None:
        self.records_read += 1
        return super().get_record(key)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "cache")


class Project:
    """A project whose trace reads all of `FILES`."""

    def __init__(self, tmp_path: Path, store: LocalStore) -> None:
        self.state = tmp_path / ".trtbuild"
        self.store = store
        self.contents = {file: f"content of {file.name}" for file in FILES}

    def lookups(self, *, trail: bool = True, trust: str = "") -> StoreLookups:
        def observe(dependency: Dependency) -> str:
            return self.contents.get(dependency, ABSENT)

        digests = FileDigests(None)
        return StoreLookups(
            LayeredStore(self.store),
            self.state.parent,
            History(self.state),
            observe,
            digests.sha256,
            trail=Trail(self.state, trust) if trail else None,
        )

    def trace(self) -> None:
        lookups = self.lookups()
        observations = [Observation(file, self.contents[file]) for file in FILES]
        chain_observations = chain.extend(
            DECLARED, observations, lookups.read_link, lookups.write_link, lookups.observe
        )
        self.store.put_record(
            Record(keys.user_code(DECLARED, chain_observations), {"graph": self.store.put_bytes(b"graph")})
        )

    def follow(self, *, trail: bool = True, trust: str = "") -> tuple[Observation, ...]:
        lookups = self.lookups(trail=trail, trust=trust)
        observations = chain.follow(DECLARED, lookups.read_link, lookups.observe)
        lookups.save_trail()
        return observations


@pytest.fixture
def project(tmp_path: Path, store: CountingStore) -> Project:
    project = Project(tmp_path, store)
    project.trace()
    return project


def test_the_links_of_a_known_chain_are_not_read_again(project: Project, store: CountingStore) -> None:
    first = project.follow()
    assert [observation.dependency for observation in first] == FILES
    store.records_read = 0
    assert project.follow() == first
    assert store.records_read == 1, "more than the end of the chain was looked for"
    assert project.follow(trail=False) == first
    assert store.records_read >= chain.SINGLE_LINKS


def test_a_chain_is_read_again_after_a_change_of_trust(project: Project, store: CountingStore) -> None:
    """Links that are no longer trusted count as missing. So they are written and signed again."""
    project.follow()
    store.records_read = 0
    assert len(project.follow(trust="ci")) == len(FILES)
    assert store.records_read >= chain.SINGLE_LINKS
    store.records_read = 0
    project.follow(trust="ci")
    assert store.records_read == 1


def test_after_an_edit_the_trail_leads_where_the_links_lead(project: Project, store: CountingStore) -> None:
    project.follow()
    project.contents[FILES[5]] = "edited"
    assert len(project.follow()) == 6
    assert project.follow() == project.follow(trail=False)
    project.trace()
    assert project.follow() == project.follow(trail=False)
    assert len(project.follow()) == len(FILES)
    project.contents[FILES[5]] = "content of 5.py"
    store.records_read = 0
    assert len(project.follow()) == len(FILES)
    assert store.records_read == 1, "the trail has forgotten the links of the old content"


def test_a_link_that_was_collected_ends_the_chain(project: Project, store: CountingStore) -> None:
    project.follow()
    removed = chain.link_recipe(DECLARED, [Observation(file, project.contents[file]) for file in FILES[:10]])
    entry = store.root / "ac" / removed.key[:2] / removed.key
    entry.unlink()
    assert len(project.follow()) == 10 == len(project.follow(trail=False))
    project.trace()
    assert len(project.follow()) == len(FILES)


def test_following_the_trail_sets_the_times_of_its_links(project: Project, store: CountingStore) -> None:
    project.follow()
    before = {path: path.stat().st_mtime_ns for path in (store.root / "ac").glob("*/*")}
    project.follow()
    touched = [path for path, mtime_ns in before.items() if path.stat().st_mtime_ns != mtime_ns]
    assert len(touched) >= chain.SINGLE_LINKS


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "other"}', '{"schema": "trtbuild.trail/1", "names": [1], "links": {}}', "\udcff"],
)
def test_with_a_damaged_or_missing_trail_the_observations_are_the_same(project: Project, text: str) -> None:
    first = project.follow()
    (project.state / "trail.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert project.follow() == first
    (project.state / "trail.json").unlink()
    assert project.follow() == first


def test_a_wrong_trail_leads_to_no_record(project: Project, store: CountingStore) -> None:
    first = project.follow()
    path = project.state / "trail.json"
    document = json.loads(path.read_bytes())
    for names in (["file:other.py"] * len(FILES), ["nonsense"] * len(FILES), []):
        path.write_text(json.dumps({**document, "names": names}))
        lookups = project.lookups()
        observations = chain.follow(DECLARED, lookups.read_link, lookups.observe)
        assert observations == first or store.get_record(keys.user_code(DECLARED, observations).key) is None


def test_after_a_wrong_trail_the_links_lead_to_the_trace_before_it_runs(project: Project, store: CountingStore) -> None:
    first = project.follow()
    path = project.state / "trail.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "names": ["file:other.py"] * len(FILES)}))
    lookups = project.lookups()
    wrong_recipe = keys.user_code(DECLARED, chain.follow(DECLARED, lookups.read_link, lookups.observe))
    assert lookups.record(wrong_recipe.key) is None
    plan = SimpleNamespace(user_code={"trace": UserCode(DECLARED, ())})
    step = Step("net/trace", "net", "trace", "run", Reason("evicted", "no longer in the cache"), recipe=wrong_recipe)
    damaged = store.put_record(Record(Recipe("package", 1, ()), {}))
    lookups.mark_damaged(damaged.recipe.key)
    record = lookups.find_new_record(plan, step)  # type: ignore[arg-type]
    assert record is not None
    assert lookups.record(damaged.recipe.key) is None, "a damaged record is used"
    assert record.recipe.key == keys.user_code(DECLARED, first).key
    assert chain.follow(DECLARED, lookups.read_link, lookups.observe) == first
    lookups.save_trail()
    assert project.follow() == first


def test_the_number_of_links_in_the_trail_is_limited(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.follow()

    def link_count() -> int:
        return len(json.loads((project.state / "trail.json").read_bytes())["links"])

    before = link_count()
    monkeypatch.setattr(trails, "MAX_LINKS", before + 10)
    project.contents[FILES[0]] = "edited"
    project.trace()  # writes more than 10 new links
    project.follow()
    assert link_count() <= before, "the older links are still in the trail"


def test_a_trail_that_cannot_be_written_is_not_an_error(project: Project) -> None:
    project.state.write_text("a file where the directory should be")
    assert len(project.follow()) == len(FILES)


def test_a_trail_is_saved_while_a_thread_of_an_interrupted_build_follows_links(tmp_path: Path) -> None:
    trail = Trail(tmp_path)

    class Following(Dependency):
        """Reading `part` adds a link to the trail, as another thread may do during `save`."""

        @property
        def part(self) -> str:
            trail.follow("late", [FILES[1]], read=True)
            return "file late.py"

    trail.follow("first", [Following("file", "late.py")], read=True)
    trail.save()
    assert list(json.loads((tmp_path / "trail.json").read_text())["links"]) == ["first"]
