"""``trtbuild watch``: keep libraries loaded, build after each change, and answer ``trtbuild build`` of other terminals.

Input: a project and a function that runs a command. Order for reading: `watcher` → `conditions` → `notifier`; `client` is
the side of ``trtbuild build``, and `endpoint` has what both sides know. `client` imports only modules that load quickly.
Uses `up_to_date`, `building`, `workers` and `project`.
"""
