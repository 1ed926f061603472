"""The lower step: a traced program made functional, cleaned, and put into the precision that was asked for."""
