"""``client.py SOCKET …``: a process that stands for a worker or a command. The server at this socket forks the real one.

The client sends its streams, variables, directory and arguments to the server (`server.py`), and ends with the exit status
of the forked process. A new client is started for each worker, so it imports only modules that load quickly.
"""

import _socket
import marshal
import os
import sys

server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(sys.argv[1])
request = marshal.dumps((os.getcwd(), sys.argv[2:], dict(os.environ)))  # noqa: PTH109
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
message = len(request).to_bytes(4, sys.byteorder) + request
sent = server.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(message[sent:])
nothing = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):  # otherwise the streams would stay open after the end of the forked process
    os.dup2(nothing, number)
status = server.recv(64)
code = marshal.loads(status) if status else 1
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
