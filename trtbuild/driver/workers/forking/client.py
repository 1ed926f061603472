"""``client.py SOCKET COMMAND…``: a process that stands for a worker. It asks a server to fork the worker, and waits for it.

SOCKET is the number of a connected socket, or the path of a socket. COMMAND is the command line of the worker. The client
sends its streams, directory, umask, environment and command to the server (`server.py`). It ends with the exit status of
the worker. If the server does not fork a worker, the client itself becomes the worker. Each forked worker has a client,
so this file imports only modules that load quickly.
"""

import _socket
import marshal
import os
import signal
import sys


def send_request(server: "_socket.socket", request: bytes) -> None:
    """Send a request and the standard streams of this process. `requests.receive_request` receives them."""
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    message = len(request).to_bytes(4, sys.byteorder) + request
    sent = server.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    while sent < len(message):
        sent += server.send(message[sent:])


def request_of_this_process(words: "list[str]") -> bytes:
    """Return a request: the directory, the umask and the environment of this process, and `words`, a command line.

    Texts are bytes, because ``PYTHONUTF8`` has no effect on a client of workers, which is started with ``-I``. So its
    encoding may differ from that of the server."""
    mask = os.umask(0o077)
    os.umask(mask)
    return marshal.dumps((os.getcwdb(), mask, list(map(os.fsencode, words)), dict(os.environb)))  # noqa: PTH109


def _ask(target: str) -> "_socket.socket | None":
    """Ask the server for a worker. Return the connection, or None if the server does not fork a worker."""
    try:
        if target.isdigit():
            server = _socket.socket(fileno=int(target))
            os.set_inheritable(server.fileno(), False)
        else:
            server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            server.connect(target)
        send_request(server, request_of_this_process(sys.argv[2:]))
        return server if server.recv(1) == b"1" else None
    except OSError:
        return None


def main() -> None:
    """Let the server fork a worker, and end with the worker's exit status or signal.

    The kernel ends this process when its parent ends. The server then ends the worker."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    server = _ask(sys.argv[1])
    if server is None:
        os.execv(sys.argv[2], sys.argv[2:])
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # otherwise the streams would stay open after the end of the forked process
        os.dup2(null, number)
    try:
        status = server.recv(64)
    except OSError:
        status = b""
    code = marshal.loads(status) if status else -9  # the server and its workers were killed
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
