"""Pure values and rules: no torch, TensorRT, disk, clock, environment or network.

Input: the contents of manifests, records, and facts about the machine, all as values. Output: recipes, keys, plans and
package indexes. The subpackages from the lowest to the highest are `values`, `model`, `engines` (beside `partition`),
`recipes`, `packages`, `planning`. Each subpackage may import only lower ones.
"""
