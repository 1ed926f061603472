"""The results of the driver, as text, Markdown or SVG: one file for each subject. This folder uses `terminal`."""
