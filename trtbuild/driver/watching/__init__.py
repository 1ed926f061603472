"""``trtbuild watch``: keep libraries loaded, build after each change, and answer ``trtbuild build`` of other terminals.

Input: a project and a function that runs a command. Order for reading: `watcher` → `conditions` → `notifier`; `client` is
the side of ``trtbuild build``, and both sides use `endpoint`. `client` imports only modules that load quickly.
This folder uses `up_to_date`, `building`, `workers` and `project`.
"""
