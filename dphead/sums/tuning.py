"""Sizes of sums, all in one table: bounds of exactness, and sizes that only take time.

No bound may be raised: with a larger one a sum could be wrong. Any other size may be
changed, and every sum stays the same. Sizes of the processor (registers, tiles) are in
`processor_numba`. Where "chosen" stands the size was chosen, not measured: no row of
benchmarks/results compares others. `python -m benchmarks products` times the compiled
loops after a change.
"""

# Bounds of exactness (dphead/privacy/proofs/exactness.md has each).
CHUNK_ROWS = 128  # rows whose products int32 can add: 128 * 4095**2 < 2**31
FLOAT64_EXACT = 2**53  # float64 holds every whole number up to here
ROUNDING_SHIFT = 1.5 * 2.0**52  # added and taken away, it leaves the nearest integer
DEVICE_ROWS = 1 << 18  # rows of one product on a device: 2**18 * 64**2 < 2**31
HALF_BASE = 64  # a device's row integer is HALF_BASE * high + low, both of 8 bits

# From where compiling pays.
COMPILED_ENTRIES = 1 << 12  # entries of a sum that is compiled; chosen
ENTRIES_PER_FEATURE = 1 << 5  # of these entries, so rows of 128 features; chosen

# numpy's pieces.
CONVERTED_ENTRIES = 1 << 18  # entries of rows turned to integers: 2 MB an array; chosen
FACTOR_ROWS = 1024  # rows whose factors are made at a time, for the cache; chosen

# Compiled loops. Operands in bytes: of int16, two an entry.
PANEL_ROWS = 4 * CHUNK_ROWS  # rows packed at a time: 0.8 MB at 768 columns; chosen
MAX_STRIP_CLASSES = 16  # so few classes' products read rows where they lie; chosen
CACHE_LINE = 32  # int16 entries of a line of 64 bytes
PREFETCH_COLUMNS = 16 * CACHE_LINE  # columns of a chunk fetched together; chosen
SCORE_COLUMNS = 1664  # of 8 rows and 3 weights: 37 KB, a nearest cache; chosen
SCORE_WEIGHTS = 1 << 18  # entries of weights: 512 KB, the second cache; chosen

# Checks.
KNOWN_ANSWER_PRODUCTS = 1 << 24  # the reference's, of one trial: about 0.02 s; chosen
CHECKED_ROWS = 32  # rows of the secret run, which the reference adds too; chosen
CHECKED_PIECE_ROWS = 2048  # rows around it, added twice: 4 % of 50,000; chosen

# Copies.
MAX_SUM_COPY_BYTES = 1 << 30  # of sums that cores hold apart; chosen
