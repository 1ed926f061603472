"""Compare a pull of 350 MB from nginx on loopback with curl, and a read of 100 MB from the local store with cp.

Rules
1. curl gets the same bytes in two ways. One is a single file, as a person copies engines by hand. The other is trtbuild's
   chunks, for which curl keeps one connection alive. curl only writes files: it compares no digest, and its files may be
   lost in a power failure. trtbuild verifies each chunk and the whole file, and syncs all files to the disk. Two more
   comparisons have no bound: curl of the file with a sync, and curl of the chunks over several connections.
2. The server's files are in the page cache. Each run writes to a new folder, which stays until the end, because removed
   files make ext4 slow. ext4 does not reuse an inode within a minute of its removal, but examines such inodes for each new
   file (0.3 ms for each of the 1,400 chunks).
3. The kernel of a virtual machine may have returned unused memory to its host. Getting this memory again takes four times
   as long as copying the bytes. So before each run, the benchmark writes and removes a file 1.5 times as large as the data.
   The measured time does not include this.
4. The bytes are random: no two chunks are equal, and nothing can be compressed. The digest of the pulled bytes is checked
   outside of the measured time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.figure import Check, Measurement, Ratio, Row, Value
from benchmarks.nginx import Nginx, run_nginx
from benchmarks.session import Session
from trtbuild.core.recipes.record import Output
from trtbuild.core.recipes.trust import TrustAll
from trtbuild.driver.project.wiring import open_remote
from trtbuild.store.local.local import LocalStore
from trtbuild.store.transports.settings import RemoteSettings


def rows(session: Session) -> Iterator[Row]:
    folder = session.empty_folder("pull")
    try:
        with run_nginx(folder / "nginx") as server:
            yield from _pulls(session, folder, server)
        yield from _hits(session, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pulls(session: Session, folder: Path, server: Nginx) -> Iterator[Row]:
    """Compare a pull of one engine from nginx with curl."""
    size = session.sizes.pull_mb * 1_000_000
    session.say(f"  putting {size / 1e6:.0f} MB on the server")
    data = os.urandom(size)
    (server.root / "whole").mkdir()
    with LocalStore(server.root).session():
        whole = LocalStore(server.root).put_bytes(data)
    del data
    parts = LocalStore(server.root).files_of(whole.sha256)
    one_file = server.root / "cas" / whole.sha256[:2] / whole.sha256  # the path of a file without chunks
    with open(one_file, "wb") as file:
        file.writelines(_chunk_file(server.root, part).read_bytes() for part in parts)
    urls = folder / "urls"
    urls.write_text(
        "".join(f"url = {server.entry_url('cas', part.sha256)}\noutput = {part.sha256}\n" for part in parts)
    )
    medians = _run_alternately(
        session,
        folder,
        size,
        file=lambda place: _curl(place, "-o", "engine", server.entry_url("cas", whole.sha256)),
        chunks=lambda place: _curl(place, "-K", str(urls)),
        parallel=lambda place: _curl(place, "-Z", "--no-progress-meter", "--parallel-max", "16", "-K", str(urls)),
        durable=lambda place: _durable_curl(place, server.entry_url("cas", whole.sha256)),
        trtbuild=lambda place: _pull(place, server, whole, parts),
    )
    pull = Value("trtbuild", medians["trtbuild"])
    note = f"{size / 1e6:.0f} MB in {len(parts)} chunks; trtbuild's are verified, and durable"
    yield Ratio(
        "pull from nginx, compared with curl of the chunks",
        pull,
        Value("curl -K", medians["chunks"]),
        bound=2.0,
        note=note,
    )
    yield Ratio("pull from nginx, compared with curl of one file", pull, Value("curl -o", medians["file"]), bound=2.0)
    yield Ratio(
        "pull from nginx, compared with curl of one file and sync", pull, Value("curl, sync", medians["durable"])
    )
    yield Ratio(
        "pull from nginx, compared with parallel curl of the chunks", pull, Value("curl -Z", medians["parallel"])
    )
    yield _same_bytes(folder, server, whole, parts)
    yield _resume(folder, server, whole, parts)


def _pull(place: Path, server: Nginx, whole: Output, parts: Sequence[Output]) -> None:
    """Fetch the engine `whole` with its chunks `parts` into the local store `place`.

    Raises RuntimeError if the engine is missing afterwards, or if more bytes than its size were fetched.
    """
    remote = open_remote(RemoteSettings("team", server.url), TrustAll())
    local = LocalStore(place)
    try:
        with local.session():
            fetched = remote.fetch(whole.sha256, parts, local)
            if not local.has(whole.sha256):
                raise RuntimeError("the pulled blob is missing")
    finally:
        remote.close()
    if fetched > whole.size:
        raise RuntimeError(f"{fetched} bytes were fetched of {whole.size}")


def _same_bytes(folder: Path, server: Nginx, whole: Output, parts: Sequence[Output]) -> Row:
    place = folder / "pulled"
    _pull(place, server, whole, parts)
    LocalStore(place).copy_to(whole.sha256, str(folder / "engine"))
    digest = hashlib.sha256((folder / "engine").read_bytes()).hexdigest()
    (folder / "engine").unlink()
    return Check("pull from nginx: the same bytes", digest == whole.sha256, f"sha256 {digest[:16]}…")


def _resume(folder: Path, server: Nginx, whole: Output, parts: Sequence[Output]) -> Row:
    """Remove every second chunk of the pulled blob and pull again, as after an interruption."""
    place = folder / "pulled"
    removed = sorted(set(parts), key=lambda part: part.sha256)[::2]
    for part in removed:
        _chunk_file(place, part).unlink()
    earlier_count = len(server.requests())
    _pull(place, server, whole, parts)
    sent = sum(request.sent for request in server.requests()[earlier_count:] if request.method == "GET")
    removed_bytes = sum(part.size for part in removed)
    return Ratio(
        "pull of a half: bytes on the line", Value("sent", sent, "B"), Value("lacking", removed_bytes, "B"), bound=1.01
    )


def _curl(place: Path, *arguments: str) -> None:
    place.mkdir()
    subprocess.run(["curl", "-sS", "--fail", *arguments], cwd=place, check=True, timeout=600, stderr=subprocess.DEVNULL)


def _durable_curl(place: Path, url: str) -> None:
    _curl(place, "-o", "engine", url)
    subprocess.run(["sync", "engine", "."], cwd=place, check=True, timeout=600)


def _hits(session: Session, folder: Path) -> Iterator[Row]:
    """Compare reads of one blob from the local store with cp and sha256sum."""
    size = session.sizes.hit_mb * 1_000_000
    data = os.urandom(size)
    with LocalStore(folder / "store").session():
        blob = LocalStore(folder / "store").put_bytes(data)
    (folder / "peer").write_bytes(data)
    expected = hashlib.sha256(data).hexdigest()
    del data
    contents: list[bytes] = []

    def get(_: Path) -> None:
        contents[:] = [LocalStore(folder / "store").get_bytes(blob.sha256)]

    def copy(place: Path) -> None:
        LocalStore(folder / "store").copy_to(blob.sha256, str(place))

    def peer(place: Path) -> None:
        subprocess.run(
            ["sh", "-c", 'cp "$1" "$2" && sha256sum "$2"', "sh", folder / "peer", place],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=600,
        )

    medians = _run_alternately(session, folder, size, get=get, copy=copy, peer=peer)
    yield Measurement(
        f"local hit of {size / 1e6:.0f} MB: bytes, verified", Value("get_bytes", medians["get"]), bound=0.5
    )
    yield Measurement(
        f"local hit of {size / 1e6:.0f} MB: a file, verified, durable", Value("copy_to", medians["copy"]), bound=0.5
    )
    yield Ratio("local hit: a file", Value("copy_to", medians["copy"]), Value("cp + sha256sum", medians["peer"]))
    digest = hashlib.sha256(contents[0]).hexdigest()
    yield Check("local hit: the same bytes", digest == expected, f"sha256 {digest[:16]}…")


def _run_alternately(
    session: Session, folder: Path, size: int, **candidates: Callable[[Path], None]
) -> dict[str, float]:
    """Return candidate → median seconds of alternating runs. Each run gets a path that does not exist (rule 2)."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(session.sizes.pull_repeats):
        for name in names if number % 2 == 0 else reversed(names):
            place = folder / f"{name}-{number}"
            _claim_memory(folder / "claimed", size)
            started = time.perf_counter()
            candidates[name](place)
            times[name].append(time.perf_counter() - started)
        session.say("  " + ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in times.items()))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _claim_memory(path: Path, size: int) -> None:
    """Write and remove a file of 1.5 times `size` bytes, so that the kernel has the memory before a run (rule 3)."""
    os.sync()
    block = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // len(block) * 3 // 2):
            file.write(block)
    path.unlink()


def _chunk_file(root: Path, part: Output) -> Path:
    return root / "cas" / part.sha256[:2] / part.sha256
