"""Find and read manifests, and the files that they include.

Rules
1. If no manifest is named, ``trtbuild.yaml`` is the manifest. If it is missing, every ``manifests/*.yaml`` is a manifest.
2. A file that another manifest includes is not a manifest.
3. A file is read once, even if several files include it. A file must not include itself, either directly, through other
   files or through a link.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtbuild.core.model.spec import Origin
from trtbuild.errors import UsageError
from trtbuild.manifest.format.fields import ManifestFields
from trtbuild.manifest.format.wording import check
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of
from trtbuild.manifest.yaml_text.problems import Problems
from trtbuild.manifest.yaml_text.tree import Node, parse_tree
from trtbuild.regular import read_regular

DEFAULT_FILE = "trtbuild.yaml"
DEFAULT_FOLDER = "manifests"
MAX_INCLUDE_DEPTH = 32

MINIMAL_MANIFEST = """\
version: 1
targets:
  ada: {sm: 89}
profiles:
  batch:
    x: {min: [1, 8], opt: [4, 8], max: [32, 8]}
models:
  net:
    source: {python: "net:build"}
    inputs:
      x: {dtype: float32}
    profiles: [batch]
    targets: [ada]
"""


@dataclass(eq=False)
class ManifestFile:
    """One file. `name` is its path relative to the project, and `sha256` is the digest of its bytes.

    `root` is its tree, or None if the file cannot be read or is not a YAML mapping. `complete` is False if files of its
    `include` list were not read.
    """

    name: str
    root: Node | None
    sha256: str = ""
    includes: list[ManifestFile] = field(default_factory=list)
    complete: bool = True

    def with_includes(self) -> Iterator[ManifestFile]:
        """This file and all files that it includes, directly or through other files.

        A file comes after the files that it includes.
        """
        seen: set[ManifestFile] = set()

        def visit(file: ManifestFile) -> Iterator[ManifestFile]:
            if file not in seen:
                seen.add(file)
                for included in file.includes:
                    yield from visit(included)
                yield file

        return visit(self)


def find_manifests(paths: ProjectPaths, files: Sequence[str] | None) -> list[str]:
    """The names of the manifests to read.

    Raises UsageError if no manifest is found, if the project's directory does not exist, or if a path is not valid."""
    if not Path(paths.root).is_dir():
        raise UsageError(f"no such directory: {paths.root}", hint="name the project's directory with -C")
    for file in files or ():
        if not file or "\0" in file:
            raise UsageError(f"{file!r} is not the path of a file", hint="name a manifest with -f")
    if files:
        return list(dict.fromkeys(paths.name_of(file) for file in files))
    # `lexists` is also true for a broken link. A broken link is a mistake, and not a reason to read other files.
    if os.path.lexists(os.path.join(paths.root, DEFAULT_FILE)):
        return [DEFAULT_FILE]
    folder = Path(paths.root, DEFAULT_FOLDER)
    names = sorted(path.name for path in folder.glob("*.yaml") if not path.name.startswith("."))
    if names:
        return [f"{DEFAULT_FOLDER}/{name}" for name in names]
    similar = next((name for name in ("trtbuild.yml", "manifest.yaml") if Path(paths.root, name).exists()), None)
    example = "\n".join(f"      {line}" for line in MINIMAL_MANIFEST.splitlines())
    raise UsageError(
        f"no manifest in {paths.root}: there is no {DEFAULT_FILE} and no {DEFAULT_FOLDER}/*.yaml",
        hint=f"name one with -f {similar}, or rename it to {DEFAULT_FILE}"
        if similar
        else f"`trtbuild init` writes a first one (-f names one in another place); it looks like this:\n{example}",
    )


class FileReader:
    """Reads files and their includes, each once."""

    def __init__(self, paths: ProjectPaths, problems: Problems) -> None:
        self._paths = paths
        self._problems = problems
        self._files: dict[str, ManifestFile] = {}
        #: The files whose includes are being read now. Each includes the next.
        self._open_files: list[ManifestFile] = []

    def read(self, name: str, origin: Origin | None = None) -> ManifestFile:
        """The file with this name. `origin` is the place that includes it, or None for a manifest."""
        identity = self._paths.identity(name)
        file = self._files.get(identity)
        if file is None:
            file = self._files[identity] = ManifestFile(name, *self._tree(name, origin))
            self._open_files.append(file)
            if len(self._open_files) > MAX_INCLUDE_DEPTH:
                file.complete = False
                place = origin or Origin(name, 1, 1)
                self._problems.add(
                    place, f"includes are more than {MAX_INCLUDE_DEPTH} deep", "include the files directly"
                )
            else:
                self._read_includes(file)
            self._open_files.pop()
        return file

    def _tree(self, name: str, origin: Origin | None) -> tuple[Node | None, str]:
        """The fields `root` and `sha256` of the `ManifestFile`."""
        noun = "the included file" if origin else "the manifest"
        place = origin or Origin(name, 1, 1)
        if not check_readable(self._paths, name, noun, place, self._problems):
            return None, ""
        try:
            content = read_regular(self._paths.absolute(name))
        except OSError as error:  # the file was deleted meanwhile, or the disk fails
            self._problems.add(place, f"{noun} {name!r} cannot be read: {error.strerror}")
            return None, ""
        return parse_tree(content, name, self._problems), hashlib.sha256(content).hexdigest()

    def _read_includes(self, file: ManifestFile) -> None:
        node = file.root.items.get("include") if file.root else None
        if file.root is None or node is None or node.data is None:
            return
        kind = ManifestFields.model_fields["include"].annotation
        names = check(kind, "include", node, file.root.keys["include"], self._problems)
        if names is None:
            file.complete = False
            return
        for path_text, element in zip(names, node.elements, strict=True):
            included = self.read(self._paths.name_of(path_text, folder_of(file.name)), element.origin)
            if included in self._open_files:
                chain = [entry.name for entry in self._open_files[self._open_files.index(included) :]]
                self._problems.add(
                    element.origin,
                    f"{included.name!r} includes itself: {' → '.join([*chain, included.name])}",
                    "move what both need to a third file",
                )
            elif included in file.includes:
                self._problems.add(element.origin, f"{path_text!r} is included twice", "keep one of the two")
            else:
                file.includes.append(included)


def read_manifests(paths: ProjectPaths, names: Sequence[str], problems: Problems) -> list[ManifestFile]:
    """Read the named files. Return the files that no other named file includes (rule 2)."""
    reader = FileReader(paths, problems)
    files = [reader.read(name) for name in names]
    included = {inner for file in files for inner in file.with_includes() if inner is not file}
    return list(dict.fromkeys(file for file in files if file not in included))
