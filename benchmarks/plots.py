"""Make and save matplotlib figures, in colors that most readers can distinguish."""

from pathlib import Path
from typing import Any

from dphead.privacy.atomic_write import write_atomically

# Okabe, Ito 2008
BLUE, ORANGE = "#0072b2", "#d55e00"


def new_figure(columns: int, size: tuple[float, float]) -> Any:
    """Return a figure, which opens no window, and an array of its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        one.grid(True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: str | Path, dpi: int = 150) -> None:
    """Write a figure in the format of its path, and create the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.removeprefix(".").lower()
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=dpi))
