"""Train networks end to end.

This package needs `pip install 'dphead[finetune]'`. A network must not mix the rows of
a batch. Code here must not add noise: sums go through `release`, as for heads.
"""
