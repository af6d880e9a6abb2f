"""Write docs/settings.md from the declarations of the settings.

`python docs/settings_page.py` writes the page. A test compares it with the
code.
"""

from collections.abc import Iterable
from pathlib import Path

from dphead.finetune.settings import Settings
from dphead.planning.methods import settable
from dphead.planning.option_aliases import Batches, RowPreparation
from dphead.planning.registry import OURS
from dphead.solvers.settings import TRIALS, Declared, settings_of

PAGE = Path(__file__).parent / "settings.md"
HEAD = f"""# Settings

Written by `python docs/settings_page.py` from the solvers' own declarations.
An estimator has its method's settings as parameters, and `dphead account` takes all of
them with `--set NAME=VALUE`. `dphead fit` (`dphead finetune` for networks) has the
settings marked *option*. A source is the default's. "{TRIALS}": on held-out rows of
CIFAR-10 and digits.
"""
COLUMNS = ("setting", "must be", "default", "source", "", "what it is")
NETWORKS = "networks (`dphead finetune`, `DPFinetuneClassifier`)"
BATCHES = "batches, in other words (where there are steps, or rows are sampled)"


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
            d.must_be,
            f"`{d.default_text}`",
            d.setting.source,
            option,
        )
        rows.append((*cells, d.setting.help))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
