"""Build a solver from a method's name, a preset and options."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dphead.planning import presets, registry
from dphead.planning.option_aliases import STANDS_FOR, Batches, RowPreparation, taken
from dphead.solvers import ProblemInfo, Solver
from dphead.solvers.prior import PublicPrior, read_prior
from dphead.solvers.settings import Declared, settings_of

_NOT_SETTINGS = ("name", "centering")  # fields of a solver that are not settings


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
        If the name or an option is unknown, if an option is out of range, or if a
        setting that the preset leaves to the user is missing.
    """
    kind = registry.solver_class(name)
    options = {k: v for k, v in options.items() if v is not None}
    for one, other in STANDS_FOR.items():
        if one in options and other in options:
            raise ValueError(
                f"`{one}` and `{other}` set the same number. Drop one of the two."
            )
    defaults = registry.OTHER_DEFAULTS.get(name, {})
    settings = dict(defaults)
    accountant, source = "auto", registry.source(name)
    if preset is not None:
        data = _preset_for(name, preset)
        settings |= _preset_settings(name, preset, data, options)
        accountant, source = data["accountant"], data["source"]
    # a user's setting also replaces the preset's alternative to it, such as epochs
    for one, other in STANDS_FOR.items():
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
    for key, default in registry.OTHER_DEFAULTS.get(name, {}).items():
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
        if STANDS_FOR[key] in own and batches:
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
    """Return a method's solver class to read its settings.

    A method of dphead has its own class even if an installed package has the same name.
    """
    ours = name in registry.OURS
    return registry.our_class(name) if ours else registry.solver_class(name)


def _preset_for(name: str, preset: str) -> dict[str, Any]:
    """Return a preset that supports the method."""
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
    """Return a preset's settings of a method, and require its open settings."""
    settings = dict(data[name])
    missing = [
        k
        for k in settings.pop("left_to_the_user", [])
        if not {k, STANDS_FOR.get(k, k)} & set(options)
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
    rows = taken(RowPreparation, settings, others)
    batches = taken(Batches, settings, others)
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
