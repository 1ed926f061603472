"""Open a package: read its index, and hash its files while they are read.

Rules
1. Each file is read once, into private memory, and hashed while it is read (unless `verify` is False). The caller gets the
   bytes that were hashed, so a later change of the file has no effect.
2. Only requested files are read. Several files are read at once, because reading and hashing release the GIL.
3. A link to a file outside the package is not followed, unless `follow_links` is True (`trtbuild.runtime.packages.inside`).
4. A package is damaged if a requested file is missing or cannot be read, or if its size or digest differs from the index.
"""

from __future__ import annotations

import contextlib
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
from trtbuild.runtime.packages.inside import PackageFolder

INDEX_NAME = "index.json"
_DAMAGED_HINT = "build the package again, or copy it again from an undamaged source"

#: Files are read and hashed in pieces of this size, so that a piece is still in the processor's cache when it is hashed.
_PIECE_BYTES = 1 << 20
#: A file of at least this size is read into memory from mmap, which Python need not fill with zeros, unlike a bytearray.
_LARGE_BYTES = 1 << 18
#: For a file of at least this size, a second thread reads while the first thread hashes.
_VERY_LARGE_BYTES = 1 << 24
#: The largest number of files that are read at once.
_MOST_READERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Package:
    """A package on disk. `digest` identifies it: the SHA-256 of its index, which contains the digests of all files."""

    path: Path
    index: PackageIndex
    digest: str
    index_bytes: bytes = field(repr=False)
    folder: PackageFolder = field(repr=False, compare=False)

    def read_unlisted(self, name: str) -> bytes | None:
        """Return the bytes of a file that is not in the index, or None if it cannot be read."""
        try:
            return self.folder.read(name)
        except (OSError, LinkRefused):
            return None

    def read(self, names: Iterable[str], *, verify: bool = True) -> Mapping[str, memoryview]:
        """Return name → the bytes of the file, in writable memory that is aligned to 16 bytes. If `verify` is False, only
        the sizes are checked. Raises PackageDamaged, LinkRefused."""
        wanted_names = list(dict.fromkeys(names))
        # Largest file first, so that all threads end at about the same time.
        wanted_names.sort(key=lambda name: -self.index.files[name].size)

        def read_one(name: str) -> memoryview:
            return _read_file(self.folder, self.path, name, self.index.files[name], verify)

        if len(wanted_names) <= 1 or _MOST_READERS == 1:
            return {name: read_one(name) for name in wanted_names}
        with ThreadPoolExecutor(min(_MOST_READERS, len(wanted_names))) as pool:
            try:
                return dict(zip(wanted_names, pool.map(read_one, wanted_names), strict=True))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def open_package(path: str | os.PathLike[str], *, follow_links: bool = False) -> Package:
    """Open the package in directory `path`, and read only its index. `follow_links` is described in rule 3.

    Raises PackageMissing, PackageDamaged, PackageTooNew, LinkRefused.
    """
    root, folder = Path(path), PackageFolder(path, follow_links=follow_links)
    try:
        data = folder.read(INDEX_NAME)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_package_error(root) from None
    except OSError as error:
        raise PackageMissing(f"the package at {root} cannot be read: {error.strerror}") from error
    return Package(root, read_index(data, str(root / INDEX_NAME)), hashlib.sha256(data).hexdigest(), data, folder)


def missing_package_error(root: Path) -> PackageMissing:
    """Return the error for a path without a package. It says what is at the path, and what to do."""
    return PackageMissing(f"there is no package at {root}: {_missing_reason(root)}", hint=_missing_hint(root))


def _missing_reason(root: Path) -> str:
    if not root.exists():
        return "no such directory"
    if not root.is_dir():
        return "it is a file"
    return "its index.json is not a regular file" if (root / INDEX_NAME).exists() else "it has no index.json"


def _missing_hint(root: Path) -> str:
    if root.name == INDEX_NAME:
        return f"name its directory: {root.parent}"
    if root.suffix == ".pt2":
        return "a .pt2 file is opened by `import trtbuild; torch.export.load(path)`"
    if root.is_dir():
        packages: list[str] = []
        with contextlib.suppress(OSError):  # a directory that this user cannot read
            packages = sorted(child.name for child in root.iterdir() if os.path.isfile(child / INDEX_NAME))  # noqa: PTH113
        if packages:
            return f"there are packages in it: {', '.join(packages[:10])}"
    return "trtbuild build writes it: dist/<model> unless the manifest says another place"


def _read_pieces(file: FileIO, view: memoryview) -> Iterator[int]:
    """Fill `view` from the file. Yield the size of each piece after it is read, or 0 if the file ends too early."""

    def read() -> Iterator[int]:
        offset = 0
        while offset < len(view):
            count = file.readinto(view[offset : offset + _PIECE_BYTES]) or 0
            yield count
            if not count:
                return
            offset += count

    if len(view) < _VERY_LARGE_BYTES or _MOST_READERS == 1:
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


def _read_file(folder: PackageFolder, root: Path, name: str, expected: Output, verify: bool) -> memoryview:
    """Read the file `name` into new memory, and compare its size and digest with the index (rules 1 and 4)."""
    path = root / name
    try:
        with open(folder.open(name), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                damage = "truncated" if size < expected.size else "altered"
                raise PackageDamaged(
                    f"{path} is {damage}: it has {size:,} bytes, but {expected.size:,} in the index", hint=_DAMAGED_HINT
                )
            memory: bytearray | mmap.mmap = (
                mmap.mmap(-1, expected.size) if expected.size >= _LARGE_BYTES else bytearray(expected.size)
            )
            view, digest, offset = memoryview(memory), hashlib.sha256(), 0
            for count in _read_pieces(file, view):
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
