"""The report of a build: one HTML page that needs no network, made from the events of the build and from its packages."""
