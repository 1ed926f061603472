"""The HTML page of a report: a jinja2 template (page.html) with its styles (page.css) and scripts.

The page loads nothing. Its scripts read the report from a JSON element, and show every text as text, not as HTML.
"""
