"""Write docs/settings.md from the declarations of the settings.

A test compares the page with the code.
"""

from collections.abc import Iterable
from pathlib import Path

from dphead.finetune.settings import Settings
from dphead.planning.methods import Batches, RowPreparation, settable
from dphead.planning.registry import OURS
from dphead.solvers.settings import TRIALS, Declared, settings_of

PAGE = Path(__file__).parent / "settings.md"
HEAD = f"""# Look up a setting

This page lists the settings of each method, with their ranges and defaults. Settings
marked *option* are options of `dphead fit` (for networks, of `dphead finetune`). The
other settings need `--set NAME=VALUE`. In Python, each setting is a
parameter of the method's estimator, with two exceptions. The settings of *batches* need
`DPHeadClassifier(settings={{...}})`. `DPFinetuneClassifier` has no `normalization`.

    dphead fit train.h5 --method dp-fc --steps 20 --set initial_bias=-1 -o run

The column *source* names the source of the default. "{TRIALS}" means trials on held-out
rows of CIFAR-10 and digits. `python docs/settings_page.py` writes this page from the
declarations in the code.
"""
COLUMNS = ("setting", "must be", "default", "source", "", "meaning")
NETWORKS = "networks (`dphead finetune`, `DPFinetuneClassifier`)"
BATCHES = "batches (alternative settings of methods with steps or sampled rows)"
PRIOR = "ndarray, or path of a .npy file"


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for name in OURS:
        found = [d for d in settable(name).values() if d is not None]
        parts.append(section(name, found))
    parts.append(section(BATCHES, settings_of(Batches).values()))
    parts.append(section("preparation of rows", settings_of(RowPreparation).values()))
    networks = settings_of(Settings).values()
    parts.append(section(NETWORKS, networks))
    return "\n".join(parts)


def section(title: str, found: Iterable[Declared]) -> str:
    """Return a section of the page: a title and a table of settings."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for d in found:
        option = "option" if d.setting.option else ""
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


if __name__ == "__main__":
    PAGE.write_text(page())
