"""Write docs/settings.md and the parameters in the estimators' docstrings.

`python docs/settings_page.py` writes both from the declarations of the settings. A test
compares them with the code.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent, indent, wrap

from dphead.estimators import base, classifiers
from dphead.finetune.settings import Settings
from dphead.planning.methods import settable
from dphead.planning.option_aliases import Batches, RowPreparation
from dphead.planning.registry import OURS
from dphead.solvers.settings import TRIALS, Declared, settings_of

PAGE = Path(__file__).parent / "settings.md"
CLASSES = Path(classifiers.__file__)
HEAD = f"""# Look up a setting

This page lists the settings of each method, with their ranges and defaults. Settings
marked *option* are options of `dphead fit` (for networks, of `dphead finetune`). The
other settings of a method need `--set NAME=VALUE`. In Python, each setting is a
parameter of the method's estimator.

    dphead fit train.h5 --method dp-fc --steps 20 --set initial_bias=-1 -o run

The column *source* names the source of the default. "{TRIALS}" means trials on held-out
rows of CIFAR-10 and digits. `python docs/settings_page.py` writes this page from the
declarations in the code.
"""
COLUMNS = ("setting", "must be", "default", "source", "", "meaning")
NETWORKS = "networks (`dphead finetune`, `DPFinetuneClassifier`)"
BATCHES = "batches (alternative settings of methods with steps or sampled rows)"
# the shared parameters of a class, its settings, and its attributes
SHARED = re.compile(
    r"(^class (DP\w+)\(.*?)(^    epsilon : .*?)(^    Examples$)", re.M | re.S
)
INDENT = "    "
PRIOR = "ndarray, or path of a .npy file"
TYPES = {"true or false": "bool", "PublicPrior": PRIOR}


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name in OURS:
        found = [d for d in settable(name).values() if d is not None]
        parts.append(section(name, found))
    parts.append(section(BATCHES, settings_of(Batches).values()))
    parts.append(section("preparation of rows", settings_of(RowPreparation).values()))
    networks = settings_of(Settings).values()
    parts.append(section(NETWORKS, networks, command="finetune"))
    return "\n".join(parts)


def section(title: str, found: Iterable[Declared], command: str = "fit") -> str:
    """Return a section of the page: a title and a table of settings.

    `command` is the command of the options. `dphead finetune` has an option for every
    setting except tables.
    """
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for d in found:
        optional = d.setting.option if command == "fit" else dict not in d.types
        option = "option" if optional else ""
        cells = (
            f"`{d.name}`",
            PRIOR if d.must_be == "PublicPrior" else d.must_be,
            f"`{d.default_text}`",
            d.setting.source,
            option,
        )
        rows.append((*cells, d.setting.help))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def source() -> str:
    """Return the text of `dphead/estimators/classifiers.py`."""
    shared = dedent(f"{INDENT}{base.DPClassifier.__doc__}")
    _, parameters, attributes = re.split(r"(?:Parameters|Attributes)\n-+\n", shared)
    attributes = attributes.partition("\nExamples\n")[0]

    def filled(match: re.Match[str]) -> str:
        head, name, _, end = match.groups()
        method = vars(getattr(classifiers, name)).get("method")
        # a class of any method has no settings of its own
        found = settable(method).values() if name != "DPHeadClassifier" else ()
        settings = [described(declared) for declared in found if declared is not None]
        text = "\n".join([parameters.rstrip(), *settings])
        text += f"\n\nAttributes\n----------\n{attributes}\n"
        return f"{head}{indent(text, INDENT)}{end}"

    return SHARED.sub(filled, CLASSES.read_text())


def described(declared: Declared) -> str:
    """Return one setting's range, meaning and default, as numpydoc."""
    default = declared.setting.source.removeprefix("None: ")
    if declared.default is not None:
        default = f"{declared.default_text} ({default})"
    text = f"{declared.setting.help} Default: {default}."
    lines = "\n".join(wrap(text, 88 - 2 * len(INDENT)))
    kind = TYPES.get(declared.must_be, declared.must_be)
    return f"{declared.name} : {kind}, default=None\n{indent(lines, INDENT)}"


if __name__ == "__main__":
    PAGE.write_text(page())
    CLASSES.write_text(source())
