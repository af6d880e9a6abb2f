"""Define the public options of a run that trains a head or a network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dphead.fit.processes import Place
from dphead.planning import presets
from dphead.planning.plan import Target
from dphead.privacy.python_values import python_value


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Hold the options that heads and networks share: source, guarantee, files.

    Attributes
    ----------
    features : Path
        A features file, or images.
    out : Path
        The run folder to write.
    preset : str or None
        The preset's name.
    epsilon : float
        The budget of the fit.
    delta : float or None
        None uses the preset's, else 1e-5.
    relation : str
        The neighboring relation.
    nominal_n : int or None
        Public number that replaces n under add_remove.
    accountant : str or None
        None uses the method's own.
    split : str or None
        Split of the source; None uses the only split.
    test, test_split : Path and str, or None
        Rows to measure on: another source, or another split of the same source.
    test_is : str
        "private" or "public".
    ledger : Path, str or None
        Ledger to charge. None uses the data set's own ledger. ":memory:" counts only
        this run (for public images).
    seed : int or None
        Seed of the noise, for tests; a seeded run is not private.
    not_private : bool
        Whether a run with a seed or without noise may be charged to a ledger on disk.
    protect : str or None
        "image" protects single images even if the source has groups. None refuses such
        a source, unless groups are protected.
    tuning : str or None
        How the settings were chosen. None means "none" for the first head of a data set
        with default settings, and "NOT ACCOUNTED" otherwise.
    allow_large_delta : bool
        Whether to accept a delta of 1/n or more.
    memory : int or None
        Memory limit of this process in bytes. None sets no limit, and streams features
        beyond 2 GB.
    config : str or None
        Text of run.toml to store in the run folder, if any.
    processes : Place or None
        Place of this process among several, if any.
    """

    features: Path
    out: Path
    preset: str | None = None
    epsilon: float = 1.0
    delta: float | None = None
    relation: str = "zero_out"
    nominal_n: int | None = None
    accountant: str | None = None
    split: str | None = None
    test: Path | None = None
    test_split: str | None = None
    test_is: str = "private"
    ledger: Path | str | None = None
    seed: int | None = None
    not_private: bool = False
    protect: str | None = None
    tuning: str | None = None
    allow_large_delta: bool = False
    memory: int | None = None
    config: str | None = None
    processes: Place | None = None

    def __post_init__(self) -> None:
        found = {name: python_value(value) for name, value in vars(self).items()}
        found["delta"] = presets.delta_of(self.preset, found["delta"])
        vars(self).update(found)  # the class is frozen

    def target(self, accountant: str, *groups: Any) -> Target:
        """Return the target of the noise calibration.

        `accountant` is used if the options name none. `groups` has the group cap and
        whether means of groups count.
        """
        return Target(
            self.epsilon,
            presets.delta_of(self.preset, self.delta),
            self.relation,
            self.accountant or accountant,
            *groups,
        )


@dataclass(frozen=True, kw_only=True)
class FitOptions(RunOptions):
    """Hold all options of the fit of a head.

    Attributes
    ----------
    method : str
        Name of the method. "auto" stands for a preset's only method, if there is one.
    settings : dict
        The method's options; None values use its defaults.
    group_cap : int or None
        Protects groups of the file's group column. Only the first `group_cap` rows of a
        group count. None protects each row.
    group_mean : bool
        Whether the means of each group's rows of one class count instead.
    classes : tuple of str or None
        Public class names, if the file declares none.
    backend : str
        The summation backend, as for `block_sum`.
    """

    method: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    group_cap: int | None = None
    group_mean: bool = False
    classes: tuple[str, ...] | None = None
    backend: str = "numpy"

    def __post_init__(self) -> None:
        super().__post_init__()
        found = presets.method_of(self.preset, self.method)
        object.__setattr__(self, "method", found)
