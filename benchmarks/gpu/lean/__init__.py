"""Run version-compatible engines with the lean and the dispatch runtime of other versions."""
