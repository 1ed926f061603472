"""Write a package as a `.pt2` file, which `torch.export.load` opens."""
