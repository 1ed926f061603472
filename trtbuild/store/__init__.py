"""Records and blobs on disk. The format is in cache/README.md."""
