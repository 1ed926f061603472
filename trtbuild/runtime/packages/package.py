"""Open a package: read its index, and hash its files while they are read.

Rules
1. Each file is read once, into private memory, and hashed while it is read. The hashed bytes themselves are used, so a
   file that is replaced later has no effect.
2. Only requested files are read, several at once (reading and hashlib release the GIL).
3. A link in the package is not followed to a file outside it (`trtbuild.runtime.packages.inside`).
4. A package is damaged if a file is missing, or if its size or digest differs from the index. The digest of the index
   identifies the package (`digest`).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from queue import SimpleQueue

from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.recipes.record import Output
from trtbuild.errors import LinkRefused, PackageDamaged, PackageMissing
from trtbuild.runtime.packages.inside import Inside

INDEX = "index.json"
_DAMAGED_HINT = "build the package again, or copy it again from an undamaged source"

#: The number of bytes that are read and then hashed: the processor's cache still has them when they are hashed.
_PIECE = 1 << 20
#: A file of at least this size is read into separate memory pages, which need not be filled with zeros.
_LARGE = 1 << 18
#: A file of at least this size is read and hashed in parallel.
_VERY_LARGE = 1 << 24
_READERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Package:
    """A package on disk. `digest` is the SHA-256 of its index, which contains the digests of all files. `raw` are the bytes
    of the index."""

    path: Path
    index: PackageIndex
    digest: str
    raw: bytes = field(repr=False)
    inside: Inside = field(repr=False, compare=False)

    def beside(self, name: str) -> bytes | None:
        """Read a file in the package that is not in its index. Returns None if the file does not exist."""
        try:
            return self.inside.read(name)
        except (OSError, LinkRefused):
            return None

    def read(self, names: Iterable[str], *, verify: bool = True) -> Mapping[str, memoryview]:
        """Read files of the package by name, into writable memory, aligned to 16 bytes. Without `verify` only their
        sizes are checked. Raises PackageDamaged, LinkRefused."""
        wanted = list(dict.fromkeys(names))
        # The largest file is first, so that all threads end at about the same time.
        wanted.sort(key=lambda name: -self.index.files[name].size)

        def read_one(name: str) -> memoryview:
            return _read(self.inside, self.path, name, self.index.files[name], verify)

        if len(wanted) <= 1 or _READERS == 1:
            return {name: read_one(name) for name in wanted}
        with ThreadPoolExecutor(min(_READERS, len(wanted))) as pool:
            try:
                return dict(zip(wanted, pool.map(read_one, wanted), strict=True))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def open_package(path: str | os.PathLike[str], *, follow_links: bool = False) -> Package:
    """Open the package in directory `path`, and read only its index. Links that lead out of the package are refused, unless
    `follow_links` is True.

    Raises PackageMissing, PackageDamaged, PackageTooNew, LinkRefused.
    """
    root, inside = Path(path), Inside(path, follow_links=follow_links)
    try:
        data = inside.read(INDEX)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(root) from None
    except OSError as error:
        raise PackageMissing(f"the package at {root} cannot be read: {error.strerror}") from error
    return Package(root, read_index(data, str(root / INDEX)), hashlib.sha256(data).hexdigest(), data, inside)


def missing(root: Path) -> PackageMissing:
    """The error for a path without a package. It names the thing that is at this path, and has a hint."""
    return PackageMissing(f"there is no package at {root}: {_absence(root)}", hint=_what_to_do(root))


def _absence(root: Path) -> str:
    if not root.exists():
        return "no such directory"
    if not root.is_dir():
        return "it is a file"
    return "its index.json is not a regular file" if (root / INDEX).exists() else "it has no index.json"


def _what_to_do(root: Path) -> str:
    if root.name == INDEX:
        return f"name its directory: {root.parent}"
    if root.suffix == ".pt2":
        return "a .pt2 file is opened by `import trtbuild; torch.export.load(path)`"
    if root.is_dir():
        inside = sorted(child.name for child in root.iterdir() if (child / INDEX).is_file())
        if inside:
            return f"there are packages in it: {', '.join(inside[:10])}"
    return "trtbuild build writes it: dist/<model> unless the manifest says another place"


def _pieces(file: FileIO, view: memoryview) -> Iterator[int]:
    """Fill `view` from the file, and yield the size of each piece after it is read, or 0 if the file ends too early. For a
    very large file, a separate thread reads ahead while the caller hashes the pieces."""

    def read() -> Iterator[int]:
        offset = 0
        while offset < len(view):
            count = file.readinto(view[offset : offset + _PIECE]) or 0
            yield count
            if not count:
                return
            offset += count

    if len(view) < _VERY_LARGE or _READERS == 1:
        yield from read()
        return
    pieces: SimpleQueue[int | OSError | None] = SimpleQueue()

    def read_ahead() -> None:
        try:
            for count in read():
                pieces.put(count)
            pieces.put(None)
        except OSError as error:
            pieces.put(error)

    thread = threading.Thread(target=read_ahead, daemon=True)
    thread.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, OSError):
                raise piece
            yield piece
    finally:
        thread.join()


def _read(inside: Inside, root: Path, name: str, expected: Output, verify: bool) -> memoryview:
    path = root / name
    try:
        with open(inside.open(name), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                damage = "truncated" if size < expected.size else "altered"
                raise PackageDamaged(
                    f"{path} is {damage}: it has {size:,} bytes, but {expected.size:,} in the index", hint=_DAMAGED_HINT
                )
            memory: bytearray | mmap.mmap = (
                mmap.mmap(-1, expected.size) if expected.size >= _LARGE else bytearray(expected.size)
            )
            view, digest, offset = memoryview(memory), hashlib.sha256(), 0
            for count in _pieces(file, view):
                if not count:
                    raise PackageDamaged(f"{path} is truncated: it ends after {offset:,} bytes", hint=_DAMAGED_HINT)
                if verify:
                    digest.update(view[offset : offset + count])
                offset += count
    except FileNotFoundError:
        raise PackageDamaged(f"{path} is missing, but the index contains it", hint=_DAMAGED_HINT) from None
    except OSError as error:
        raise PackageDamaged(f"{path} cannot be read: {error.strerror}", hint=_DAMAGED_HINT) from error
    if verify and digest.hexdigest() != expected.sha256:
        raise PackageDamaged(
            f"{path} is altered: its SHA-256 is {digest.hexdigest()[:12]}…, but {expected.sha256[:12]}… in the index",
            hint=_DAMAGED_HINT,
        )
    return view
