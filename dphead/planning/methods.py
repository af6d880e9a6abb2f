"""Build a solver from a method's name, a preset and options."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, TypeVar

from dphead.planning import presets, registry
from dphead.solvers import ProblemInfo, Solver
from dphead.solvers.centering import CENTER_SHARE, UNIT_NORM, Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.solvers.prior import PublicPrior, read_prior
from dphead.solvers.settings import (
    OFF,
    POSITIVE,
    Declared,
    Setting,
    check_settings,
    settings_of,
    typed,
)

_T = TypeVar("_T", "Batches", "RowPreparation")
_NOT_SETTINGS = ("name", "centering")  # fields of a solver that are not settings
# defaults of a method that replace those of its class; the rate comes from trials
_OTHER_DEFAULTS: dict[str, dict[str, Any]] = {
    "dp-adam": {"optimizer": "adam", "learning_rate": 0.1}
}
# each alternative setting, and the solver's setting that it replaces
_STANDS_FOR = {
    "epochs": "steps",
    "base_learning_rate": "learning_rate",
    "batch_size": "sampling_prob",
}
_BATCH_SIZE = Setting(
    "Expected size of Poisson batches (default: the full batch).",
    POSITIVE,
    OFF,
    option=True,
)
EPOCHS = Setting("Number of epochs, instead of steps.", POSITIVE, OFF, option=True)
BASE_LEARNING_RATE = Setting(
    "Learning rate for batches of 512 rows (TB21 Table 13), scaled in proportion to "
    "the batch size; replaces learning_rate.",
    POSITIVE,
    OFF,
)
NORMALIZATION = Setting(
    "Normalize channels, without unit norms and centering: a table of n_channels, "
    "mean_clip, square_clip, noise_multiplier and threshold.",
    source=OFF,
)
_BASE_BATCH = 512  # rows of a batch; TB21 Table 13


@dataclass(frozen=True)
class Batches:
    """Hold settings that stand for the sampling rate, steps and learning rate."""

    batch_size: Annotated[int | float | None, _BATCH_SIZE] = None
    epochs: Annotated[float | None, EPOCHS] = None
    base_learning_rate: Annotated[float | None, BASE_LEARNING_RATE] = None

    def __post_init__(self) -> None:
        check_settings(self)

    def resolve(self, settings: dict[str, Any], facts: ProblemInfo) -> dict[str, Any]:
        """Return the settings, with the sampling rate, steps and learning rate.

        They are computed from batch_size, epochs and base_learning_rate, if given.
        Existing values of steps and learning_rate stay.
        """
        found = dict(settings)
        if self.batch_size is not None:
            found["sampling_prob"] = min(1.0, self.batch_size / facts.n_rows)
        prob = found.get("sampling_prob", 1.0)
        batches = found.get("epoch_steps") or 1  # 0 is refused with the other settings
        if self.epochs is not None:
            found.setdefault("steps", max(1, round(self.epochs * batches / prob)))
        if self.base_learning_rate is not None:
            rate = self.base_learning_rate * prob * facts.n_rows / _BASE_BATCH / batches
            found.setdefault("learning_rate", rate)
        return found


@dataclass(frozen=True)
class RowPreparation:
    """Hold the settings that scale, center or normalize rows before the sums."""

    unit_norm: Annotated[bool | None, UNIT_NORM] = None
    center_share: Annotated[float | None, CENTER_SHARE] = None
    normalization: Annotated[dict[str, Any] | None, NORMALIZATION] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.center_share and self.normalization is not None:
            raise ValueError(
                "`center_share` cannot be combined with `normalization`. Drop one of "
                "the two."
            )
        if self.center_share and self.unit_norm is False:
            raise ValueError(
                "`center_share` needs `unit_norm`, got `unit_norm` False. Drop one of "
                "the two."
            )

    def centering(self) -> Centering | ChannelNormalization:
        """Return the solver's `centering`."""
        if self.normalization is not None:
            return _normalization(self.normalization)
        share = Centering.share if self.center_share is None else self.center_share
        return Centering(share, self.unit_norm is not False)


def _normalization(table: dict[str, Any]) -> ChannelNormalization:
    try:
        return ChannelNormalization(**table)
    except TypeError:
        names = ", ".join(settings_of(ChannelNormalization))
        raise ValueError(
            f"`normalization` must be a table of {names}, got {typed(table)}. Use only "
            "these names. The last two are optional."
        ) from None


@dataclass(frozen=True)
class Method:
    """Hold a solver, its accountant, and the source of its defaults.

    The accountant is "auto", unless a preset names another one.
    """

    solver: Solver
    accountant: str
    source: str

    def settings(self) -> dict[str, Any]:
        """Return the solver's settings, for the report."""
        solver: Any = self.solver
        return solver.record() if hasattr(solver, "record") else asdict(solver)


def make_method(
    name: str, facts: ProblemInfo, options: dict[str, Any], preset: str | None = None
) -> Method:
    """Build the solver `name` from a preset's settings, overridden by `options`.

    Parameters
    ----------
    name : str
        One of `registry.method_names()`.
    facts : ProblemInfo
        Public sizes.
    options : dict
        Settings and alternative settings by name (docs/settings.md). None values are
        ignored. The prior of "auto" is an array or an .npy file of public weights
        (n_features, n_classes).
    preset : str, optional
        Name of a preset.

    Returns
    -------
    Method
        Solver, accountant, and source of the defaults.

    Raises
    ------
    ValueError
        If the name, the preset or an option is unknown, if an option is out of range,
        if two options set the same number, or if a setting that the preset leaves to
        the user is missing.
    """
    kind = registry.solver_class(name)
    options = {k: v for k, v in options.items() if v is not None}
    for one, other in _STANDS_FOR.items():
        if one in options and other in options:
            raise ValueError(
                f"`{one}` and `{other}` set the same number. Drop one of the two."
            )
    defaults = _OTHER_DEFAULTS.get(name, {})
    settings = dict(defaults)
    accountant, source = "auto", registry.source(name)
    if preset is not None:
        data = _preset_for(name, preset)
        settings |= _preset_settings(name, preset, data, options)
        accountant, source = data["accountant"], data["source"]
    # a user's setting also replaces the preset's alternative to it, such as epochs
    for one, other in _STANDS_FOR.items():
        settings.pop(other if one in options else one if other in options else "", None)
    settings |= options
    known = {*settable(name), *_shorthands(name)}
    unknown = sorted(set(settings) - set(defaults) - known, key=str)
    if unknown:
        wrong = ", ".join(map(repr, unknown))
        others = [
            other
            for other in registry.OURS
            if {*settable(other), *_shorthands(other)} >= set(unknown)
        ]
        among = f"Choose a method among {', '.join(others)}, or drop"
        raise ValueError(
            f"{name} has no setting {wrong}. Its settings are "
            f"{', '.join(sorted(known))}. {among if others else 'Drop'} {wrong}."
        )
    return Method(_built(name, kind, settings, facts), accountant, source)


def settable(name: str) -> dict[str, Declared | None]:
    """Return the settings of a method's solver that a user may set, by name.

    The value is None if an installed solver has a field for the setting, but no
    `Setting`.
    """
    kind = _described(name)
    declared = settings_of(kind)
    for key, default in _OTHER_DEFAULTS.get(name, {}).items():
        declared[key] = replace(declared[key], default=default)
    own = [f.name for f in fields(kind) if f.init]
    found = {key: declared.get(key) for key in own if key not in _NOT_SETTINGS}
    return {k: d for k, d in found.items() if d is None or d.setting.settable}


def _shorthands(name: str) -> dict[str, Declared]:
    """Return the alternative settings of a method by name, such as epochs for steps."""
    own = set(settable(name))
    found: dict[str, Declared] = {}
    if "centering" in {f.name for f in fields(_described(name))}:
        found |= settings_of(RowPreparation)
    for key, declared in settings_of(Batches).items():
        batches = key != "base_learning_rate" or "sampling_prob" in own
        if _STANDS_FOR[key] in own and batches:
            found[key] = declared
    return {k: d for k, d in found.items() if k not in own}


def options() -> list[tuple[Declared, list[str]]]:
    """Return the settings that are options of `dphead fit`, each with its methods.

    Settings that several methods share appear once, with the choices of any method.
    """
    found: dict[str, tuple[Declared, list[str]]] = {}
    for name in registry.OURS:
        for key, declared in (settable(name) | _shorthands(name)).items():
            if declared is not None and declared.setting.option:
                first, methods = found.get(key, (declared, []))
                one = declared if declared.choices else first
                found[key] = one, [*methods, name]
    return list(found.values())


def _described(name: str) -> type:
    """Return the solver class whose settings describe a method.

    For a name of dphead, this is dphead's class, even if a package has the same name.
    """
    ours = name in registry.OURS
    return registry.our_class(name) if ours else registry.solver_class(name)


def _preset_for(name: str, preset: str) -> dict[str, Any]:
    """Return a preset, or raise ValueError if it cannot be used with the method."""
    data = presets.load(preset)
    if "needs" in data:
        todo = (
            "Use the preset with `dphead finetune`."
            if "network" in data
            else "Choose another preset, or drop --preset."
        )
        raise ValueError(
            f"`--preset {preset}` cannot train a head, because it needs "
            f"{data['needs']}. {todo}"
        )
    if name not in data:
        have = sorted(k for k in data if k in registry.OURS)
        raise ValueError(
            f"The preset {preset} has no settings for {name}. Choose a method among "
            f"{', '.join(have)}, or drop the preset."
        )
    return data


def _preset_settings(
    name: str, preset: str, data: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Return a preset's settings of a method.

    Raises ValueError if `options` lack a setting that the preset leaves to the user.
    """
    settings = dict(data[name])
    missing = [
        k
        for k in settings.pop("left_to_the_user", [])
        if not {k, _STANDS_FOR.get(k, k)} & set(options)
    ]
    if missing:
        columns = data.get("columns", {})
        printed = [
            f"{k} {', '.join(map(str, v))}"
            for k, v in columns.items()
            if k in ("epsilon", *missing)
        ]
        why = f"several values ({'; '.join(printed)})" if printed else "no value"
        needed = " and ".join(f"`{k}`" for k in missing)
        raise ValueError(
            f"The preset {preset} needs {needed}, for which the paper has {why}. Pass "
            f"{needed}."
        )
    if settings.pop("equal_noise", False):
        newton = name == "dp-newton"
        settings |= {"hessian_share": 0.5} if newton else {"gram_share": None}
    return settings


def _built(
    name: str, kind: type, settings: dict[str, Any], facts: ProblemInfo
) -> Solver:
    others = set(_shorthands(name))
    rows = _taken(RowPreparation, settings, others)
    batches = _taken(Batches, settings, others)
    settings = batches.resolve(settings, facts)
    if "centering" in {f.name for f in fields(kind)}:
        settings["centering"] = rows.centering()
    prior = settings_of(kind).get("prior")
    if "prior" in settings and prior is not None and PublicPrior in prior.types:
        settings["prior"] = read_prior(settings["prior"])
    solver = kind(**settings)
    if solver.name != name:
        raise ValueError(
            f"The solver of method {name!r} has the name {solver.name!r}. Give both "
            "the same name."
        )
    return solver


def _taken(kind: type[_T], settings: dict[str, Any], names: set[str]) -> _T:
    """Build `kind` from the settings in `names`, and remove these from `settings`."""
    own = {f.name for f in fields(kind)} & names & set(settings)
    return kind(**{name: settings.pop(name) for name in own})
