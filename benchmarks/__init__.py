"""The figures of trtbuild, each against a peer or a floor in the same run: ``python -m benchmarks`` (``make bench``)."""
