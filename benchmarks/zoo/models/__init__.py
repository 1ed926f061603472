"""The architectures of the zoo, with random weights. Each function returns a module in evaluation mode."""
