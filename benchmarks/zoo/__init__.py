"""The zoo: public architectures that are built, verified and listed in docs/zoo.md (``make zoo``)."""
