"""Processes that have loaded torch, and fork the workers that need it. So a build imports torch once.

The driver starts a client, a small process, in place of each worker. A server forks a worker for the client, and the client
lives as long as the worker. If the server cannot fork a worker, the client becomes a new worker itself. The rules are in
`server_process`, the program of the servers. `server` forks, and `preloading` keeps processes with imported libraries.
`owner` starts the servers, and `lending` lends them to a pool of workers. `warming` fills the tables of torch before a
fork. `client` sends a request, and `requests` receives it.

Only `server_process` uses `worker` and `handlers`, because a forked process becomes a worker. The other modules use
only `kinds` and `environments` of `workers`, and no other package of `driver`.
"""
