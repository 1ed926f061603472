"""The command line. Most commands call the driver, and show the returned document.

The layers, from the lowest: `terminal`, then `screens` and `report_page`, then `commands`, then `main`.
"""
