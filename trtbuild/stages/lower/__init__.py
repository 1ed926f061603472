"""The lower step: decomposes operators of a traced program, cleans it, and changes it to the requested precision."""
