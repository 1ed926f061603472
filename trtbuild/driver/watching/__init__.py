"""``trtbuild watch``: keep libraries loaded, build after each change, and answer ``trtbuild build`` of other terminals.

Begin with `watcher`. `client` is the side of ``trtbuild build``, and imports only modules that load quickly. Both sides
use `endpoint`.
"""
