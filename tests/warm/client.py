"""``client.py SOCKET …``: a process that stands for a worker of the server behind a socket, as `server.py` says.

It gives the server its streams, variables, directory and arguments, and ends as the worker ends. It is started for each
worker, so it imports nothing that takes time.
"""

import _socket
import marshal
import os
import sys

server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(sys.argv[1])
told = marshal.dumps((os.getcwd(), sys.argv[2:], dict(os.environ)))  # noqa: PTH109
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
message = len(told).to_bytes(4, sys.byteorder) + told
sent = server.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(message[sent:])
nothing = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):  # else its streams would stay open when the worker ends
    os.dup2(nothing, number)
status = server.recv(64)
code = marshal.loads(status) if status else 1
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
