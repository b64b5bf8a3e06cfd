"""`python -m tfds_torch.check` reads a dataset with real worker processes and proves what came.

`parser_check` does so with a parser that a script makes.
"""
