"""What decides a run, of a head or of a network: plain data, all of it public."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dphead.planning import presets
from dphead.planning.plan import Target
from dphead.runs.connect import Place


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What heads and networks have in common: the source, the guarantee, the files.

    features: a features file, or images. out: the run folder to write. delta: None
    takes the preset's, else 1e-5. nominal_n:
    replaces n under add_remove. accountant: None takes the method's own. split: of the
    source; None takes its only one. test, test_split: rows to measure on, of another
    source or of the same. test_is: "private" or "public". ledger: None is the data
    set's own, ":memory:" counts this run alone (public images). seed: for tests.
    protect: "image" confirms that each image is protected for itself alone although the
    source has groups; None refuses such a source, unless groups are protected.
    tuning: how the settings were chosen; None says "none" for the first head of a data
    set if it uses defaults only, and "NOT ACCOUNTED" for anything else.
    allow_large_delta: confirms a delta at or above 1/n.
    memory: bytes that this process may hold; None streams features beyond 2 GB and
    promises nothing.
    config: the text of run.toml, which the run folder keeps; None keeps none.
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
    protect: str | None = None
    tuning: str | None = None
    allow_large_delta: bool = False
    memory: int | None = None
    config: str | None = None

    def __post_init__(self) -> None:
        found = presets.delta_of(self.preset, self.delta)
        object.__setattr__(self, "delta", found)  # the class is frozen

    def target(self, accountant: str, group_cap: int | None = None) -> Target:
        """What the noise is calibrated for. accountant: where none was chosen."""
        return Target(
            self.epsilon,
            presets.delta_of(self.preset, self.delta),
            self.relation,
            self.accountant or accountant,
            group_cap,
        )


@dataclass(frozen=True, kw_only=True)
class FitOptions(RunOptions):
    """Everything that decides the fit of a head.

    settings: the method's options; None values take its defaults. classes: public class
    names if the file declares none. group_cap: protects groups of the file's group
    column, of which the first so many rows count; None protects each row.
    backbones: features files of the same images by other networks; the fit chooses
    among all (`runs.backbones`).
    backend: how rows are summed, for `block_sum`. processes: this one's place among
    several, each of which reads its own part of the rows.
    """

    method: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    group_cap: int | None = None
    backbones: tuple[Path, ...] = ()
    classes: tuple[str, ...] | None = None
    backend: str = "numpy"
    processes: Place | None = None
