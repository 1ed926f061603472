"""Groups of commands, common flags, help sections, completion, schemas. Uses `screens`, `report_page` and `terminal`."""
