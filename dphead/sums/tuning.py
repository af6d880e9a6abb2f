"""Define constants of the sums: bounds of exactness, and sizes that affect speed only.

Never raise a bound, because a sum could become wrong. The other sizes never change a
sum. The sizes of registers and tiles are in `processor`. A size marked "chosen" was not
measured: benchmarks/results has no comparison with other values.
"""

# Bounds of exactness (dphead/privacy/proofs/exactness.md has each).
CHUNK_ROWS = 128  # rows with products that int32 can add: 128 * 4095**2 < 2**31
FLOAT64_EXACT = 2**53  # float64 holds every whole number up to here
ROUNDING_SHIFT = 1.5 * 2.0**52  # adding and subtracting it leaves the nearest integer
HALF_BASE = 64  # XLA's row integer is HALF_BASE * high + low, both of 8 bits
MAX_HALVES = 96  # largest |low + high|: 32 + 64
DEVICE_ROWS = 1 << 17  # rows of one product on a device: 2**17 * 96**2 < 2**31

# Smallest sizes for compiled loops.
COMPILED_ENTRIES = 1 << 12  # entries of a sum; chosen
ENTRIES_PER_FEATURE = 1 << 5  # entries per feature: from 128 features on; chosen

# Pieces for numpy.
CONVERTED_ENTRIES = 1 << 18  # entries converted to integers: 2 MB per array; chosen
FACTOR_ROWS = 1024  # rows per batch of factors, for the cache; chosen

# Compiled loops. An int16 entry takes two bytes.
PANEL_ROWS = 4 * CHUNK_ROWS  # rows packed at a time: 0.8 MB at 768 columns; chosen
MAX_STRIP_CLASSES = 16  # largest number of classes with rows read in place; chosen
CACHE_LINE = 32  # int16 entries of a line of 64 bytes
PREFETCH_COLUMNS = 16 * CACHE_LINE  # columns of a chunk per fetch; chosen
SCORE_COLUMNS = 1664  # columns of 8 rows and 3 weights: 37 KB, the L1 cache; chosen
SCORE_WEIGHTS = 1 << 18  # entries of weights: 512 KB, the L2 cache; chosen

# Checks.
KNOWN_ANSWER_PRODUCTS = 1 << 24  # products of one trial: about 0.02 s; chosen
CHECKED_ROWS = 32  # secret rows, also added by the reference; chosen
CHECKED_PIECE_ROWS = 2048  # rows around it, added twice: 4 % of 50,000; chosen

# Copies.
MAX_SUM_COPY_BYTES = 1 << 30  # bytes of the copies of a sum on all threads; chosen
