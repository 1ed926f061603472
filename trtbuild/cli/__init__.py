"""The command line. `main` declares the commands. Each command calls the driver, and shows the document that it gets.

Packages, from the lowest layer: `terminal`, then `screens` and `report_page`, then `commands`.
"""
