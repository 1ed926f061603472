"""The architectures of the zoo, with random weights. The function of each architecture returns a module in evaluation
mode."""
