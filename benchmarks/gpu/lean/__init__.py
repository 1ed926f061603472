"""Run version-compatible engines with the lean and the dispatch runtimes of other versions."""
