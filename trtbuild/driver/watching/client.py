"""``trtbuild build`` asks the watcher of its project to build, if there is one.

Rules
1. The watcher forks a copy of itself, which builds. The copy gets the streams, the directory, the umask, the arguments and
   the environment variables of this process. So the output and the exit code are those of a build without a watcher.
2. If the watcher refuses or does not answer, this process builds by itself, and prints the reason on standard error. The
   socket of a watcher that was killed counts as no watcher, so nothing is printed.
3. Ctrl-C and SIGTERM interrupt the copy. This process then exits with the exit code of the copy.
4. The watcher must run as the same user, and the directory of its socket must be private.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket

from trtbuild import null_build
from trtbuild.driver.watching import endpoint
from trtbuild.driver.workers.forking.client import request_of_this_process, send_request

#: Seconds to wait until the watcher accepts or refuses.
PATIENCE_S = 10.0


def answer(arguments: list[str]) -> int | None:
    """Let the watcher build, and return the exit code of the build; None if this process has to build."""
    if "build" not in arguments:
        return None
    try:
        path = endpoint.socket_path(null_build.project_directory(arguments))
        if path is None or not os.path.exists(path):  # noqa: PTH110
            return None
        if not endpoint.is_private(os.path.dirname(path)):
            endpoint.say("trtbuild watch is not used: its directory of sockets is not private")
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as watcher:
            watcher.settimeout(PATIENCE_S)
            watcher.connect(path)
            return _build(watcher, arguments)
    except (ConnectionRefusedError, FileNotFoundError):  # the socket of a watcher that was killed
        return None
    except (OSError, ValueError, IndexError) as error:
        endpoint.say(f"trtbuild watch does not answer ({error}): building without it")
        return None


def _build(watcher: socket.socket, arguments: list[str]) -> int | None:
    if not endpoint.is_own_peer(watcher):
        endpoint.say("trtbuild watch of another user is not used")
        return None
    words = [marshal.dumps(endpoint.process_properties()).hex(), *arguments]
    send_request(watcher, request_of_this_process(words))
    if watcher.recv(1) != b"1":
        reason = watcher.recv(4096).decode(errors="replace")
        endpoint.say(f"building without trtbuild watch: {reason or 'it has ended'}")
        return None
    watcher.settimeout(None)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = _status(watcher)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not status:
        endpoint.say("trtbuild watch has ended: building without it")
        return None
    code: int = marshal.loads(status)
    if code < 0:
        endpoint.say(f"the build in trtbuild watch was ended by {signal.Signals(-code).name}")
        return 128 - code  # the status that shells give to a process that the signal `-code` has ended
    return code


def _status(watcher: socket.socket) -> bytes:
    """Wait for the end of the copy. Ctrl-C (or SIGTERM) interrupts the copy. The second Ctrl-C ends this process."""
    try:
        return watcher.recv(64)
    except KeyboardInterrupt:
        status = _status_after_interrupt(watcher)
        if not status:
            raise  # an interrupted build must not begin again in this process
        return status


def _status_after_interrupt(watcher: socket.socket) -> bytes:
    try:  # noqa: SIM105 (contextlib would have to be loaded first)
        watcher.send(b"i")
    except OSError:
        pass  # the copy has ended, and may have sent its status
    try:
        return watcher.recv(64)
    except OSError:
        return b""
