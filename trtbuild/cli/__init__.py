"""The command line. `main` declares the commands. Most commands call the driver, and show the returned document.

Packages, from the lowest layer: `terminal`, then `screens` and `report_page`, then `commands`.
"""
