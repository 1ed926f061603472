"""The commands, except those in `main`, with their common flags, help and completion.

This folder uses `screens`, `report_page` and `terminal`.
"""
