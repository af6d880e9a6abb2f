"""Declare the parameters that estimators share, each once, as solvers declare settings.

`check_settings` refuses a wrong type or range before anything uses it. What depends on
other parameters or on the data's size is checked where it is used.
"""

from pathlib import Path
from typing import Annotated, Literal

from dphead.privacy.ledger import Ledger
from dphead.solvers.settings import AT_LEAST_ONE, Range, Setting

BUDGET = Range("> 0 (inf: not private)", lambda v: v > 0)
BELOW_ONE = Range("in (0, 1)", lambda v: 0 < v < 1)
PLACE = Range("a path or a Ledger", lambda v: v != "")

Epsilon = Annotated[float, Setting("Budget of a fit.", BUDGET)]
Delta = Annotated[float, Setting("Of the budget.", BELOW_ONE)]
DeltaOrNone = Annotated[float | None, Setting("None: the preset's.", BELOW_ONE)]
Relation = Annotated[
    Literal["zero_out", "add_remove", "replace_one"],
    Setting("What two neighbouring data sets differ by."),
]
NominalN = Annotated[int | None, Setting("Public, in place of n.", AT_LEAST_ONE)]
GroupCap = Annotated[int | None, Setting("Rows of a group that count.", AT_LEAST_ONE)]
Protect = Annotated[Literal["image"] | None, Setting("Confirms what is protected.")]
AccountantName = Annotated[str, Setting("That the noise is calibrated by.")]
LedgerPlace = Annotated[str | Path | Ledger | None, Setting("What counts.", PLACE)]
PresetName = Annotated[str | None, Setting("A paper's settings.")]
SplitName = Annotated[str | None, Setting("Of a features file.")]
Confirmed = Annotated[bool, Setting("Whether something is confirmed.")]
Seed = Annotated[int | None, Setting("Of the noise, for tests.")]
