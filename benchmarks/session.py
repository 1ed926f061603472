"""One run of ``python -m benchmarks``: its sizes, its work folder, and the commands that it measures.

The work folder keeps projects and their caches from run to run, because building a thousand engines takes long. It is
`benchmarks/.work`, which git ignores, or the folder of ``--work``. You may delete it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Median, Run, measure_alternately, run

#: Modules that some builds must not import. They are *poisoned*: PYTHONPATH has modules of these names that raise an error.
TORCH = ("torch",)
TENSORRT = ("tensorrt_rtx", "tensorrt")

_POISON = """\
raise ImportError("{name} is poisoned: this benchmark checks that it is not imported")
"""


@dataclass(frozen=True)
class Sizes:
    """The sizes of all benchmarks. Published numbers use these defaults, except that ``--full`` sets `weights_gb`."""

    #: The two projects of tiny models: `models` and `few_models` are their numbers of models. Both have `targets` targets.
    models: int = 200
    targets: int = 5
    few_models: int = 20
    #: Models of the project whose results are copies (`clones`). Its plan is compared with that of the project of `models`.
    cloned_models: int = 2000
    #: The vision transformer: layers, channels, and the height (and width) of its images.
    layers: int = 12
    hidden: int = 768
    image: int = 224
    #: The layers of the vision transformer in `measurements/chunks.py`.
    chunk_layers: int = 4
    #: The size of the file whose digest is computed, in GB.
    weights_gb: float = 2.0
    #: The stages of the project that dvc checks.
    dvc_stages: int = 100
    #: The size of the engine that `pull` downloads `pull_repeats` times, and of each package that `load` loads, in MB.
    pull_mb: int = 350
    pull_repeats: int = 3
    #: The size of the file that `pull` reads from the local cache, in MB.
    hit_mb: int = 100
    #: The size of the weights of the large model, in GB.
    large_gb: float = 3.0
    #: Steps on the workers of a Dask scheduler, during which the growth of the driver's memory is measured.
    farm_steps: int = 10_000
    #: Processes that use one store at the same time.
    crowd: int = 24
    #: How often a command is measured: a build that has nothing to do (`repeats`), and a slower one (`cold_repeats`).
    repeats: int = 15
    cold_repeats: int = 3

    @property
    def vit(self) -> dict[str, Any]:
        """The sizes of the vision transformer, as `projects.write_vit` takes them."""
        return {"layers": self.layers, "hidden": self.hidden, "image": self.image}


@dataclass
class Session:
    """Folders, sizes and programs that all benchmarks share."""

    work: Path
    sizes: Sizes
    #: The virtual environment of doit and dvc.
    peers: Path
    #: The program that is measured: ``--trtbuild``, or the script beside this interpreter.
    trtbuild: Path = field(default_factory=lambda: Path(sys.executable).with_name("trtbuild"))
    #: The medians of `straight_vit.py`; None before they are measured.
    _script: Median | None = None

    def folder(self, name: str) -> Path:
        path = self.work / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def empty_folder(self, name: str) -> Path:
        shutil.rmtree(self.work / name, ignore_errors=True)
        return self.folder(name)

    def peer_program(self, name: str) -> Path:
        """Return the program of a peer. Raises FileNotFoundError, with the command that installs it, if it is missing."""
        program = self.peers / "bin" / name
        if not program.exists():
            raise FileNotFoundError(f"{program}: `make bench` installs it (benchmarks/peers.txt)")
        return program

    def say(self, text: str) -> None:
        """Print progress on standard error."""
        print(text, file=sys.stderr, flush=True)

    def call(self, project: Path, *arguments: str, poison: Sequence[str] = (), **settings: Any) -> Run:
        """Run trtbuild in a project with the project's own cache. The process cannot import the modules in `poison`."""
        environment = self.environment(poison)
        return run([self.trtbuild, *arguments], project, environment=environment, **settings)

    def document(self, project: Path, *arguments: str, **settings: Any) -> tuple[Run, Any]:
        """Run trtbuild with ``--json``; return the run and the document."""
        done = self.call(project, *arguments, "--json", **settings)
        return done, json.loads(done.stdout)

    def environment(self, poison: Sequence[str] = ()) -> dict[str, str]:
        """Return this process's environment variables without ``TRTBUILD_*``, and with the modules in `poison` poisoned.

        ``PYTHONDONTWRITEBYTECODE`` is left out, because it would make Python compile a checkout's modules in each run.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TRTBUILD_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        if poison:
            environment["PYTHONPATH"] = str(self._poisoned(poison))
        return environment

    def script(self, project: Path, *, measure_memory: bool) -> Run:
        """Run `straight_vit.py` on the model of a `projects.write_vit` project. It builds an engine without trtbuild."""
        sizes = self.sizes
        return self.run_script(
            "straight_vit.py", project, [sizes.layers, sizes.hidden, sizes.image], measure_memory=measure_memory
        )

    def run_script(self, name: str, project: Path, arguments: Sequence[str | int], *, measure_memory: bool) -> Run:
        """Run the script `name` of `measurements/scripts`. Its first argument is a folder, which is deleted afterwards."""
        output = self.work / "straight"
        shutil.rmtree(output, ignore_errors=True)
        script = Path(__file__).parent / "measurements" / "scripts" / name
        command: list[str | Path] = [sys.executable, script, output, *map(str, arguments)]
        done = run(command, project, environment=self.environment(), measure_memory=measure_memory)
        self.say(f"  the script: {done}")
        shutil.rmtree(output)
        return done

    def script_median(self, project: Path) -> Median:
        """Return the medians of `straight_vit.py`. The first call measures them, unless `note_script` was called before."""
        if self._script is None:
            self.say("  the straight script, for the ratios below")
            self._script = measure_alternately(
                self.sizes.cold_repeats,
                script=lambda measure_memory: self.script(project, measure_memory=measure_memory),
            )["script"]
        return self._script

    def note_script(self, median: Median) -> None:
        """Keep the medians of `straight_vit.py`, so that `script_median` does not measure them again."""
        self._script = median

    def _poisoned(self, names: Sequence[str]) -> Path:
        folder = self.work / ("poison-" + "-".join(names))
        for name in names:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(_POISON.format(name=name))
        return folder


def run_counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Return stage → number of steps that ran. Stages without such a step are left out."""
    return {stage: count["run"] for stage, count in document["totals"].items() if count["run"]}


def delete_build(project: Path, *, cache: bool) -> None:
    """Delete the outputs and the state of a project. With `cache`, delete the cache, too."""
    for name in ("dist", ".trtbuild", *(("cache",) if cache else ())):
        shutil.rmtree(project / name, ignore_errors=True)
