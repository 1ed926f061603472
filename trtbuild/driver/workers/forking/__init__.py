"""Processes that have loaded torch, and fork the workers that need it. So a build imports torch once.

Input: requests of clients, each a process that stands for a worker. Output: a forked worker for each client, or none: the
client then becomes a new worker. `server_process` is the program and has the rules, `server` forks, and `preloading` keeps
processes with imported libraries. `owner` starts the program, and `lending` gives it to a pool of workers. `warming` fills
the tables of torch before a fork. `client` sends a request, and `requests` receives it.

Only `server_process` uses `worker` and `handlers`, because a forked process becomes a worker. The other modules use
only `kinds` and `environments` of `workers`, and no other package of `driver`.
"""
