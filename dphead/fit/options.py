"""Define the public options of a run that trains a head or a network.

Each option is declared once, at its field (`dphead_extract.declared`).
"""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dphead_extract.declared import Option, settings_of
from dphead_extract.numerals import n_bytes, named_settings, several_names

from dphead.planning import presets
from dphead.planning.calibration import ACCOUNTANTS
from dphead.planning.plan import Target
from dphead.planning.registry import method_names
from dphead.privacy.accounting import RELATIONS
from dphead.solvers.settings import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    SHARE,
    Range,
    check_settings,
)

# how settings may have been chosen
TUNING = ("none", "post-processing", "public data", "charged", "NOT ACCOUNTED")

# sections of the commands' help
_files_option = partial(Option, section="Files")
_guarantee_option = partial(Option, section="Guarantee")
_method_option = partial(Option, section="Method")
memory_option = partial(Option, section="Memory, devices and processes")

EPSILON = _guarantee_option(
    "Epsilon that this fit spends. inf means no noise and no privacy.",
    Range("positive (inf: not private)", lambda v: v > 0),
    flags=("-e", "--epsilon"),
    resumed=True,
)
DELTA = _guarantee_option(
    "Probability that the guarantee fails, below 1/n for n images or groups. Default: "
    "the delta of --preset, else 1e-5.",
    SHARE,
    resumed=True,
)
RELATION = _guarantee_option(
    "Neighboring relation. Neighboring data sets differ in one image (or group), which "
    "is zeroed out, added or removed, or replaced.",
    choices=RELATIONS,
    resumed=True,
)
NOMINAL_N = _guarantee_option(
    "Public number near the number of images. Only --relation add_remove needs this "
    "number, because the number of images is then private.",
    AT_LEAST_ONE,
    resumed=True,
)
GROUP_CAP = _guarantee_option(
    "Protect groups (patients), and use at most this many images of each group.",
    AT_LEAST_ONE,
    resumed=True,
)
GROUP_MEAN = _guarantee_option(
    "For each group and class, use the mean of the features instead of single images. "
    "At most --group-cap classes of a group are used.",
    resumed=True,
)
PROTECT = _guarantee_option(
    "Protect single images although the source has groups (people)."
)
_LEDGER = _guarantee_option(
    "Ledger to charge: a file, or a team's postgresql:// URL. Default: DPHEAD_LEDGER, "
    "else the data set's own file in DPHEAD_HOME.",
    shared=False,
)
ACCOUNTANT = _guarantee_option(
    "Accountant that calibrates the noise. Default: the accountant of the method.",
    choices=ACCOUNTANTS,
    resumed=True,
)
ALLOW_LARGE_DELTA = _guarantee_option("Accept a delta of 1/n or more.")
_SEED = _guarantee_option(
    "Seed of the noise, for tests. The result is NOT private. Needs "
    "--i-know-this-is-not-private.",
    NOT_NEGATIVE,
    resumed=True,
)
_METHOD = _method_option(
    "Training method. auto has no hyperparameters to set. If --preset names settings "
    "of one method, auto selects that method. `dphead fit --method NAME --help` lists "
    "the settings of a method.",
    choices=method_names,
    resumed=True,
)
PRESET = _method_option(
    "Preset with a paper's settings: fc23, tb21, tb21-mnist, tb21-cifar10, de22, ..."
)
_AXES_FROM = _method_option(
    "Features file of public images by the same backbone. With few training images, "
    "or with --axes-count, the head uses only the principal axes of the public images.",
    existing="a features file",
    shared=False,
)
AXES_COUNT = _method_option(
    "Number of axes of --axes-from. Default: set from the numbers of training images "
    "and classes, and from the noise; no axes if they would not help.",
    AT_LEAST_ONE,
    resumed=True,
)
_SET = _method_option(
    "Set a hyperparameter of --method, such as batch_size=4096.",
    flags=("--set",),
    read=named_settings,
    repeated=True,
    metavar="NAME=VALUE",
)
MEMORY = memory_option(
    "Limit on the memory of each process, such as 2GB. Default: what the machine, its "
    "container and `ulimit -v` allow.",
    read=n_bytes,
    metavar="SIZE",
    shared=False,
)
FEATURES = _files_option(
    "Features file.", flags=("FEATURES",), existing="a features file", shared=False
)


@dataclass(frozen=True)
class Place:
    """Hold this process's place among the processes of a run.

    Attributes
    ----------
    coordinator : str
        host:port of process 0, or "auto" to detect it with `jax.distributed` (such as
        under SLURM). With "auto", `count` and `index` may be None.
    count : int or None
        Number of processes.
    index : int or None
        Index of this process, from 0 to count - 1.
    timeout : float
        Seconds to wait for all processes to connect.
    """

    coordinator: str
    count: int | None = None
    index: int | None = None
    timeout: float = 300.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the place of a text such as "0/4@host0:8476,60" or "auto".

        Raises ValueError if the text is invalid.
        """
        found = re.fullmatch(r"(auto|(\d+)/(\d+)@(\S+:\d+))(?:,(\d+))?", text)
        index, count = (int(found[i] or 0) for i in (2, 3)) if found else (0, -1)
        if found is None or (found[2] and index >= count):
            raise ValueError(
                "write I/N@HOST:PORT with I from 0 to N - 1, such as 0/4@host0:8476, "
                f"or auto, got {text!r}."
            )
        wait = float(found[5] or cls.timeout)
        if found[2] is None:
            return cls("auto", timeout=wait)
        return cls(found[4], count, index, wait)

    @property
    def local(self) -> bool:
        """Return whether all processes run on this host."""
        host = self.coordinator.rpartition(":")[0].strip("[]")
        return host in ("localhost", "::1") or host.startswith("127.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Hold the options that heads and networks share: source, guarantee, files.

    `config` has the text of run.toml to store in the run folder, if any. The ledger
    ":memory:" counts only this run (for public images). `processes` is the place of
    this process among several, if any.
    """

    features: Annotated[Path, FEATURES]
    out: Annotated[
        Path,
        _files_option(
            "Run folder to create.",
            flags=("-o", "--output"),
            kept=False,
            shared=False,
        ),
    ]
    split: Annotated[
        str | None,
        _files_option(
            "Split to train on. Required if the source has several splits.",
            resumed=True,
        ),
    ] = None
    test: Annotated[
        Path | None,
        _files_option(
            "Source of test images, of the same kind as the training source. Default: "
            "the training source, if --test-split is given.",
            existing="the test images",
            shared=False,
        ),
    ] = None
    test_split: Annotated[
        str | None,
        _files_option(
            "Name of the test split, in the source of --test or in the training "
            "source.",
            shared=False,
        ),
    ] = None
    test_is: Annotated[
        Literal["private", "public"],
        _files_option(
            "Whether the test images need protection. public: they need none, and the "
            "report includes the accuracy on the test images.",
            shared=False,
        ),
    ] = "private"
    epsilon: Annotated[float, EPSILON] = 1.0
    delta: Annotated[float | None, DELTA] = None
    relation: Annotated[str, RELATION] = RELATIONS[0]
    nominal_n: Annotated[int | None, NOMINAL_N] = None
    protect: Annotated[Literal["image"] | None, PROTECT] = None
    ledger: Annotated[Path | str | None, _LEDGER] = None
    accountant: Annotated[str | None, ACCOUNTANT] = None
    tuning: Annotated[
        str | None,
        _guarantee_option(
            "Statement in the report on how the settings were chosen. Default: none "
            "for the first head of a data set with default settings, else NOT "
            "ACCOUNTED.",
            choices=TUNING,
            shared=False,
        ),
    ] = None
    allow_large_delta: Annotated[bool, ALLOW_LARGE_DELTA] = False
    not_private: Annotated[
        bool,
        _guarantee_option(
            "Confirm a fit with --epsilon inf or --seed. The ledger's total is "
            "infinite from then on.",
            flags=("--i-know-this-is-not-private",),
            kept=False,
        ),
    ] = False
    seed: Annotated[int | None, _SEED] = None
    preset: Annotated[str | None, PRESET] = None
    memory: Annotated[int | None, MEMORY] = None
    config: Annotated[
        str | None,
        _files_option(
            "TOML file of options, such as a run's run.toml. Typed options override "
            "it.",
            kept=False,
            shared=False,
        ),
    ] = None
    processes: Place | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.test_is == "public" and self.test is None and self.test_split is None:
            raise ValueError(
                "--test-is public needs test images. Name them by --test or "
                "--test-split."
            )
        found = presets.delta_of(self.preset, self.delta)
        object.__setattr__(self, "delta", found)  # the class is frozen

    def target(self, accountant: str, *groups: Any) -> Target:
        """Return the target of the noise calibration.

        `accountant` is used if the options name none. `groups` has the group cap and
        whether group means are used.
        """
        accountant = self.accountant or accountant
        assert self.delta is not None  # after __post_init__
        return Target(self.epsilon, self.delta, self.relation, accountant, *groups)

    def repeated(self) -> dict[str, Any]:
        """Return the options that a resume must repeat, by name."""
        return {
            name: getattr(self, name)
            for name, one in settings_of(type(self)).items()
            if isinstance(one.setting, Option) and one.setting.resumed
        }


@dataclass(frozen=True, kw_only=True)
class FitOptions(RunOptions):
    """Hold all options of the fit of a head."""

    classes: Annotated[
        tuple[str, ...] | None,
        _files_option(
            "Public class names, such as a,b,c, if the file declares no classes.",
            read=several_names,
        ),
    ] = None
    group_cap: Annotated[int | None, GROUP_CAP] = None
    group_mean: Annotated[bool, GROUP_MEAN] = False
    method: Annotated[str, _METHOD] = "auto"
    axes_from: Annotated[Path | None, _AXES_FROM] = None
    axes_count: Annotated[int | None, AXES_COUNT] = None
    settings: Annotated[dict[str, Any], _SET] = field(default_factory=dict)
    backend: Annotated[
        Literal["auto", "numpy", "jax", "reference"],
        memory_option(
            "Library that computes sums and weights. All give equal sums. reference is "
            "slow."
        ),
    ] = "auto"
    processes: Annotated[
        Place | None,
        memory_option(
            "Place of this process in a fit on several processes: process I of N, "
            "counted from 0, and the address of process 0. auto: take the place from "
            "the cluster's job. All processes must connect within 300 s. auto,60 "
            "sets 60 s.",
            flags=("--process",),
            read=Place.parse,
            metavar="I/N@HOST:PORT|auto",
            kept=False,
            shared=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        found = presets.method_of(self.preset, self.method)
        object.__setattr__(self, "method", found)
