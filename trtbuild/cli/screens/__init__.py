"""Results for a person: one file for each kind of document.

In: documents of the driver. Out: text, Markdown or SVG. Uses `terminal`.
"""
