"""Define constants of the sums: bounds of exactness, and sizes for time and memory.

Never raise a bound, because a sum could become wrong. The other sizes never change a
sum. The sizes of the compiled kernels are in `kernels`. A size marked "chosen" was not
measured: benchmarks/results has no comparison with other values.
"""

# Bound of exactness (dphead/privacy/proofs/exactness.md; `jax` has its own).
FLOAT64_EXACT = 2**53  # float64 holds every whole number up to here

# Pieces for numpy.
CONVERTED_ENTRIES = 1 << 18  # entries converted to integers: 2 MB per array; chosen
FACTOR_ROWS = 1024  # rows per batch of factors, for the cache; chosen

# Checks.
# Rows around the secret row, which are added twice: 4 % of 50,000 rows; chosen.
CHECKED_PIECE_ROWS = 2048

# Copies.
MAX_SUM_COPY_BYTES = 1 << 30  # bytes of the copies of a sum on all threads; chosen
