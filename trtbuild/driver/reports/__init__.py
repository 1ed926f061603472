"""The report of a build: one HTML page that needs no network, made from the build's events and packages."""
