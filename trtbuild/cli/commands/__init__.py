"""Groups of commands, common flags, help sections, completion. Uses `screens` and `terminal`."""
