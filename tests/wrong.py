"""Values that parameters cannot have, and the form of what is said of them."""

import math
import re

import numpy as np

HOUSE_FORM = re.compile(r"[^\n]+, got [^\n]+\. [^\n]+")
HUGE = 10**400  # no float
NAN = math.nan
SQUARE = np.ones((2, 2))
NO_TEXT = (b"1", 1, True, NAN, {}, object(), SQUARE)
NO_NUMBER = ("1", b"1", True, [1.0], {}, 1j, object())
NO_NUMBER = (*NO_NUMBER, SQUARE, NAN, HUGE)
WHOLE = (*NO_NUMBER, 1.5, 0, -1, math.inf)
POSITIVE = (*NO_NUMBER, 0, -1.0, math.inf, 1e300)
NOT_NEGATIVE = (*NO_NUMBER, -1.0, math.inf, 1e300)
FINITE = (*NO_NUMBER, math.inf, -math.inf, 1e300)
BELOW_ONE = (*NO_NUMBER, -0.1, 1, math.inf, 1e300)
SHARE = (*BELOW_ONE, 0)
FLAG = ("no", "", 1, 0.0, NAN, [], {}, SQUARE)
NAME = (*NO_TEXT, "nothing", "", ["zero_out"])

# of parameters that all estimators have
SHARED = {
    "epsilon": (*NO_NUMBER, None, 0, -1.0, -math.inf),
    "delta": (*NO_NUMBER, 0, 1, -1e-5, 1e300, math.inf),
    "relation": (*NAME, None),
    "nominal_n": WHOLE,
    "ledger": ("", b"x", 1.5, True, NAN, [], SQUARE),
    "allow_large_delta": (*FLAG, None),
    "random_state": (*NO_NUMBER, 1.5, math.inf),
}
CLASSES = (
    *(5, NAN, True, "012", b"012", object()),
    *(range(10**9), range(HUGE), {0: 0, 1: 1, 2: 2}),
    *([0, 0], [0, NAN], [None, 1], [], SQUARE),
    [[0], [1, 2]],
)
# of those of all classifiers
CLASSED = SHARED | {
    "classes": CLASSES,
    "protect": NAME,
    "preset": NAME,
    "accountant": (*NAME, None),
}
