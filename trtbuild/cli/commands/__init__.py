"""Groups of commands, common flags, help sections, completion, schemas.

This folder uses `screens`, `report_page` and `terminal`.
"""
