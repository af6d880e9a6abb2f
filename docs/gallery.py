"""Run the programs in examples/ and draw a picture of each result for the site."""

import contextlib
import io
import os
import runpy
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dphead.privacy.accounting import GaussianEvent

SIZE = (3.2, 2.4)  # inches, of each picture
BLUE, ORANGE = "#0072b2", "#d55e00"
Names = dict[str, Any]  # a program's variables after the run


def run(program: Path) -> tuple[str, Figure]:
    """Run a program in an empty folder. Return what it printed, and its picture."""
    here, home = os.getcwd(), os.environ.get("DPHEAD_HOME")
    figure = Figure(figsize=SIZE, layout="constrained")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        os.environ["DPHEAD_HOME"] = f"{folder}/ledgers"
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                names = runpy.run_path(str(program))
            PICTURES[program.stem](figure, names)
        finally:
            os.chdir(here)
            del os.environ["DPHEAD_HOME"]
            if home is not None:
                os.environ["DPHEAD_HOME"] = home
    text = printed.getvalue().replace(f"{folder}/ledgers", "~/.local/share/dphead")
    return text.rstrip(), figure


def tiles(
    figure: Figure,
    images: Iterable[np.ndarray],
    titles: Iterable[Any],
    colors: str = "RdBu_r",
) -> None:
    """Draw ten images of digits, or the weights of ten classes as images."""
    places = figure.subplots(2, 5).ravel()
    for place, image, title in zip(places, images, titles, strict=False):
        limit = np.abs(image).max()
        place.imshow(image.reshape(8, 8), cmap=colors, vmin=-limit, vmax=limit)
        place.set_title(title, fontsize=8)
        place.set_axis_off()


def weights(figure: Figure, names: Names) -> None:
    """Draw the weights of a linear head on pixels."""
    head = names["head"]
    tiles(figure, head.coef_, head.classes_)


def bars(figure: Figure, values: dict[str, float], label: str) -> None:
    """Draw one bar for each value."""
    axes = figure.subplots()
    axes.barh(list(values), list(values.values()), color=BLUE)
    axes.set_xlabel(label)
    axes.invert_yaxis()


def budget(figure: Figure, names: Names) -> None:
    """Draw the spent epsilon and the budget."""
    spent = names["ledger"].spent(1e-5).epsilon
    bars(figure, {"one fit": 1.0, "two fits": spent, "budget": 2.0}, "ε at δ = 1e-5")


def class_accuracy(figure: Figure, names: Names) -> None:
    """Draw the released interval of each class."""
    each = names["released"].each
    middle = np.array([one.accuracy for one in each])
    low = middle - [one.low for one in each]
    high = [one.high for one in each] - middle
    axes = figure.subplots()
    axes.errorbar(range(10), middle, [low, high], fmt="o", color=BLUE, capsize=3)
    axes.set(xlabel="digit", ylabel="expected accuracy", xticks=range(10))


def components(figure: Figure, names: Names) -> None:
    """Draw the first components as images."""
    tiles(figure, names["components"].components_, range(1, 11))


def error_bars(figure: Figure, names: Names) -> None:
    """Draw the scores of the first row with two standard errors."""
    axes = figure.subplots()
    axes.errorbar(
        range(10), names["scores"][0], 2 * names["errors"][0], fmt="o", capsize=3
    )
    axes.set(xlabel="class", ylabel="score of the first row", xticks=range(10))


def images_to_head(figure: Figure, names: Names) -> None:
    """Draw the first images."""
    tiles(figure, names["pixels"], names["digits"], "gray")


def jax_arrays(figure: Figure, names: Names) -> None:
    """Draw the weights of the head on pixels."""
    tiles(figure, names["head"].weights.T, range(10))


def opacus_tutorial(figure: Figure, names: Names) -> None:
    """Draw the filters of the first layer."""
    filters = names["model"][0].weight.detach().numpy()
    for place, one in zip(figure.subplots(4, 4).ravel(), filters, strict=True):
        place.imshow(one[0], cmap="RdBu_r")
        place.set_axis_off()


def own_accountant(figure: Figure, names: Names) -> None:
    """Draw the epsilon of each accountant."""
    releases, epsilon_by = names["releases"], names["epsilon_by"]
    values = {"own (CLT)": names["clt_epsilon"](releases, 1e-5)}
    for name in ("pld", "rdp", "rdp-classic"):
        values[name] = epsilon_by(name, releases, 1e-5, "add_remove")
    bars(figure, values, "ε at δ = 1e-5")


def patients(figure: Figure, names: Names) -> None:
    """Draw how many images of each patient the last fit used."""
    axes = figure.subplots()
    counts = np.bincount(names["patient"])
    axes.bar(range(12), counts[:12], color="#cccccc", label="images of the patient")
    axes.bar(range(12), np.minimum(counts[:12], 1), color=BLUE, label="used at cap 1")
    axes.set(xlabel="patient", ylabel="images", ylim=(0, 4.6), xticks=range(12))
    axes.legend(frameon=False, fontsize=8)


def regression(figure: Figure, names: Names) -> None:
    """Draw predictions of the last model against the true numbers."""
    axes = figure.subplots()
    axes.plot(names["y_new"], names["model"].predict(names["X_new"]), ".", color=BLUE)
    axes.plot([0, 9], [0, 9], "--", color=ORANGE)
    axes.set(xlabel="digit", ylabel="prediction (ε = ∞)")


def save_and_check(figure: Figure, names: Names) -> None:
    """Draw the upper bound on every membership-inference attack."""
    from dphead.analysis.tradeoff import true_positive_rates

    rates = np.linspace(0, 1, 101)
    events = [GaussianEvent(1 / names["head"].privacy_.mu)]
    axes = figure.subplots()
    axes.plot(rates, true_positive_rates(events, rates), color=BLUE, label="ε = 1")
    axes.plot(rates, rates, "--", color=ORANGE, label="guessing")
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
    axes.legend(frameon=False, fontsize=8)


def several_labels(figure: Figure, names: Names) -> None:
    """Draw the probability of each label for the first rows."""
    axes = figure.subplots()
    shares = names["head"].predict_proba(names["X"][:8])
    axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(3), names["NAMES"])
    axes.set_yticks(range(8), names["digit"][:8].tolist())
    axes.set_ylabel("digit")


PICTURES: dict[str, Callable[[Figure, Names], None]] = {
    "budget": budget,
    "class_accuracy": class_accuracy,
    "components": components,
    "embeddings_to_onnx": weights,
    "error_bars": error_bars,
    "first_head": weights,
    "images_to_head": images_to_head,
    "jax_arrays": jax_arrays,
    "opacus_tutorial": opacus_tutorial,
    "own_accountant": own_accountant,
    "patients": patients,
    "poisson_batches": weights,
    "regression": regression,
    "save_and_check": save_and_check,
    "several_labels": several_labels,
}
