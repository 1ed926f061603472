"""The results that the driver returns, as text, Markdown or SVG: one file for each subject. This folder uses `terminal`."""
