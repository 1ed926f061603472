"""The lower step: makes a traced program functional, cleans it, and changes it to the requested precision."""
