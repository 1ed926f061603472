"""The watcher of a project: it waits for changes and for clients, and lets copies of itself build.

A client is a process of ``trtbuild build`` that lets the watcher build.

Rules
1. The watcher does not import torch, and runs no user code. It keeps other processes that have loaded torch and the
   libraries of models (`trtbuild.driver.workers.forking.preloading`). Each trace runs in a copy of such a process, and each
   build in a copy of the watcher. So a build sees nothing of the build before.
2. A waiting watcher has no open store, and holds no lock except that of its socket.
3. It waits with one `poll`, in one thread. If a file changes during a build, another build follows.
4. The `endpoint.process_properties` and the environment variables of a client must equal those of the watcher. Only the
   variables in `environments.FREE_VARIABLES` and those that begin with ``TRTBUILD_`` may differ.
5. Before each build, and after `TICK_S` seconds without an event, the watcher checks whether it may continue
   (`conditions`).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import marshal
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtbuild.driver.project.workspace import Request
from trtbuild.driver.watching import copies, endpoint
from trtbuild.driver.watching.conditions import Conditions
from trtbuild.driver.watching.copies import Copy
from trtbuild.driver.watching.dependencies import Dependencies, dependencies, identity
from trtbuild.driver.watching.notifier import Notifier
from trtbuild.driver.workers.environments import differing_variable
from trtbuild.driver.workers.forking import requests
from trtbuild.driver.workers.forking.lending import start_servers
from trtbuild.driver.workers.forking.owner import lend_servers
from trtbuild.errors import EnvironmentFault, UsageError

#: After this many seconds without an event, the conditions and the files outside the project are checked.
TICK_S = 2.0

#: The seconds within which a client must send its request, and interrupted builds must end.
PATIENCE_S = 5.0

#: Command line → its exit code. The function runs the command.
Run = Callable[[list[str]], int]


class Watcher:
    """Watches the project of `request`. `arguments` is the command line of its builds.

    `files` are the files that this command line names and each build writes, such as that of ``--report``."""

    def __init__(self, request: Request, arguments: list[str], run: Run, files: Sequence[str] = ()) -> None:
        self._request = request
        self._arguments = arguments
        self._run = run
        self._environment = dict(os.environ)
        self._project = request.project.resolve()
        self._files = [Path(file).parent.resolve() / Path(file).name for file in files]
        self._conditions = Conditions(self._project)
        self._dependencies = Dependencies({}, ())
        self._copies: list[Copy] = []
        self._own_build: Copy | None = None
        self._is_changed = True

    def watch(self) -> None:
        """Watch until Ctrl-C.

        Raises EnvironmentFault when the watcher has to end or cannot start, and UsageError if another watcher watches the
        project."""
        if importlib.util.find_spec("watchfiles") is None:
            raise EnvironmentFault(
                "trtbuild watch needs the library watchfiles, which is not installed",
                hint="pip install 'trtbuild[watch]'",
            )
        with contextlib.ExitStack() as stack:
            self._listening = stack.enter_context(self._open_socket(stack))
            servers = start_servers(Path("/"))
            if servers is None:
                raise EnvironmentFault("trtbuild watch needs Linux 5.3 or newer", hint="use trtbuild build")
            stack.callback(servers.close)
            lend_servers(servers)
            self._servers = servers
            code, report = copies.start(self._write_report).finish()  # in a copy (rule 2)
            self._use_report(report, code)
            self._notifier = self._new_notifier()
            stack.callback(lambda: self._notifier.close())
            stack.callback(self._end_copies)
            with contextlib.suppress(KeyboardInterrupt):
                endpoint.say(f"watching {self._project}: end with Ctrl-C")
                while True:
                    self._step()

    def _step(self) -> None:
        """Start a build if a file has changed, then wait for an event and process it."""
        if self._is_changed and self._own_build is None:
            self._end_if_needed()
            self._is_changed = False
            self._own_build = copies.start(self._build)
            self._copies.append(self._own_build)
        watched = select.poll()
        for descriptor in (self._listening.fileno(), self._notifier.descriptor):
            watched.register(descriptor, select.POLLIN)
        for copy in self._copies:
            watched.register(copy.pidfd, select.POLLIN)
            if copy.client is not None:
                watched.register(copy.client.fileno(), select.POLLIN)
        ready = {descriptor for descriptor, _ in watched.poll(TICK_S * 1000)}
        if self._notifier.descriptor in ready:
            self._is_changed = True
            if not self._notifier.take():
                raise EnvironmentFault("the process that notices changes of files has ended", hint="start it again")
        for copy in list(self._copies):
            if copy.client is not None and copy.client.fileno() in ready:
                self._read_client(copy)
            if copy.pidfd in ready:
                self._finish(copy)
        if self._listening.fileno() in ready:
            self._accept()
        if not ready:
            self._end_if_needed()
        self._note_outside_changes()

    def _end_if_needed(self) -> None:
        """Raise EnvironmentFault if the watcher has to end."""
        reason = self._conditions.why_to_end()
        if reason is None and not self._servers.is_alive:
            reason = "the process that has loaded torch was killed"
        if reason is not None:
            raise EnvironmentFault(f"trtbuild watch has ended: {reason}", hint="start it again")

    # -- builds

    def _build(self, report_descriptor: int) -> int:
        """Build, and report the dependencies. This runs in a copy."""
        self._close_sockets()
        code = self._run(self._arguments)
        self._write_report(report_descriptor)
        return code

    def _write_report(self, report_descriptor: int) -> int:
        """Write the dependencies of the models to a file. This runs in a copy."""
        with open(report_descriptor, "w") as file:
            json.dump(asdict(dependencies(self._request)), file)
        return 0

    def _finish(self, copy: Copy) -> None:
        self._copies.remove(copy)
        code, report = copy.finish()
        _send_exit_code(copy, code)
        if copy is self._own_build:
            self._own_build = None
            self._note_outside_changes()  # first: the report has new identities of files that changed during the build
            written = self._dependencies.written
            self._use_report(report, code)
            if self._dependencies.written != written:
                self._replace_notifier()

    def _new_notifier(self) -> Notifier:
        return Notifier([self._project], [*self._files, *map(Path, self._dependencies.written)])

    def _replace_notifier(self) -> None:
        """Ignore other paths, because the manifests have other outputs now. No change is lost: the new notifier has begun
        before the earlier one ends."""
        earlier, self._notifier = self._notifier, self._new_notifier()
        if select.select([earlier.descriptor], [], [], 0)[0]:
            self._is_changed = True
        earlier.close()

    def _note_outside_changes(self) -> None:
        """Notice changes of files outside the project. A change is noticed once, so it starts one build."""
        outside = self._dependencies.outside
        for path, seen in list(outside.items()):
            now = identity(path)
            if now != seen:
                outside[path] = now
                self._is_changed = True

    def _use_report(self, report: Any, code: int) -> None:
        """Use the dependencies that a copy has reported. `code` is its exit code. A killed copy has reported nothing.

        If the copy has failed, or a file has changed since its start, the report may lack files. Then the earlier files
        outside the project stay, because an edit of such a file may repair the project.

        A doubtful file that was not watched during the build starts another build. This happens once, because the file is
        watched from now on.
        """
        if report is None:
            return
        outside = self._dependencies.outside
        if not outside.keys() >= set(report["doubtful"]):
            self._is_changed = True
        earlier = outside if code or self._is_changed else {}
        self._dependencies = Dependencies({**earlier, **report["outside"]}, tuple(report["written"]))

    def _end_copies(self) -> None:
        for copy in self._copies:
            copy.interrupt()
        deadline = time.monotonic() + PATIENCE_S
        for copy in self._copies:
            waiting = select.poll()
            waiting.register(copy.pidfd, select.POLLIN)
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                os.kill(copy.pid, signal.SIGKILL)
            _send_exit_code(copy, copy.finish()[0])

    # -- clients

    def _open_socket(self, stack: contextlib.ExitStack) -> socket.socket:
        """Listen for clients. Without a private directory, the socket has no path, so no client can find it."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = endpoint.socket_path(str(self._project))
        folder = None if path is None else Path(path).parent
        if folder is not None:
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)
        if path is None or not endpoint.is_private(str(folder)):
            endpoint.say("XDG_RUNTIME_DIR names no private directory: trtbuild build does not use this watcher")
            listening.bind("")  # an abstract name that the kernel chooses; `_accept` checks the user
        else:
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError("another trtbuild watch watches this project", hint="end it first") from None
            Path(path).unlink(missing_ok=True)  # the socket of a watcher that was killed
            listening.bind(path)
            stack.callback(Path(path).unlink, missing_ok=True)
        listening.listen(16)
        return listening

    def _accept(self) -> None:
        """Accept a client. Start a copy that builds for it, or send the reason why it has to build by itself."""
        client, _ = self._listening.accept()
        client.settimeout(PATIENCE_S)
        if not endpoint.is_own_peer(client):
            client.close()
            return
        streams, request = requests.receive_request(client)
        try:
            directory, mask, (properties, *arguments), environment = requests.parse_request(request)
            reason = self._reason_to_refuse(marshal.loads(bytes.fromhex(properties)), environment)
        except (ValueError, TypeError, AttributeError, EOFError):
            directory, mask, arguments, environment, reason = "/", 0, [], {}, "the request is invalid"
        if reason is None and len(streams) == 3:

            def build(report_descriptor: int) -> int:
                os.close(report_descriptor)  # the build of a client reports nothing
                self._close_sockets()
                client.close()
                requests.take_over(streams, directory, mask)
                return self._build_for_client(arguments, environment)

            self._copies.append(copies.start(build, client=client))
            with contextlib.suppress(OSError):
                client.send(b"1")
        else:
            with contextlib.suppress(OSError):
                client.send(b"0" + (reason or "the request is invalid").encode())
            client.close()
        requests.close_all(streams)

    def _reason_to_refuse(self, properties: object, environment: dict[str, str]) -> str | None:
        """Return why a client has to build by itself; None if a copy can build for it."""
        if properties != endpoint.process_properties():
            return "it has another Python, trtbuild, group, processor, namespace or resource limit"
        name = differing_variable(self._environment, environment)
        if name is not None:
            return f"its variable {name} differs"
        return self._conditions.why_to_end()

    def _build_for_client(self, arguments: list[str], environment: dict[str, str]) -> int:
        requests.set_environment(environment, {})
        copies.use_client_streams()
        sys.argv[1:] = arguments
        return self._run(arguments)

    def _read_client(self, copy: Copy) -> None:
        """Interrupt a build if its client asks for this, and kill it if the client has ended."""
        if copy.client is None:
            return
        try:
            message = copy.client.recv(1)
        except OSError:
            message = b""
        if message:
            copy.interrupt()
        else:
            copy.kill()
            copy.client.close()
            copy.client = None

    def _close_sockets(self) -> None:
        """Close the connections of the watcher. This runs in a copy."""
        self._listening.close()
        for copy in self._copies:
            if copy.client is not None:
                copy.client.close()


def _send_exit_code(copy: Copy, code: int) -> None:
    if copy.client is not None:
        with contextlib.suppress(OSError):
            copy.client.send(marshal.dumps(code))
        copy.client.close()
