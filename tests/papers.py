"""Where each table stands in the papers' texts, for the tests that look up what claims
and presets say.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "papers"
TEXTS = {
    "FC23": "003_b3c6ea970578328a.txt",
    "TB21": "004_3a0367dec02d8ff2.txt",
    "De22": "000_dda556f012002794.txt",
    "TAN23": "001_bdc80eb878d38089.txt",
}
# First and last words of each table with its caption (either may come first in the
# text), read by eye.
SPANS = {
    ("FC23", "1"): (
        "Dataset Epsilon Previous SOTA Accuracy",
        "for reproducibility of our results.",
    ),
    ("FC23", "2"): (
        "Pretraining Method Epochs NP 0.01",
        "outperforms all other methods across the board.",
    ),
    ("FC23", "3"): (
        "ImageNet-1K\n\nDP-LS 1 91.3",
        "with JFT were DP-LS performs\nslightly better.",
    ),
    ("FC23", "4"): (
        "ImageNet-1K\n\nDP-LS 1 71.9",
        "depending on the\npre-training dataset.",
    ),
    ("FC23", "6"): (
        "D.2 DP-Adam hyperparameters",
        "weight decay as specified in the table.",
    ),
    ("FC23", "7"): (
        "D.3 DP-LS hyperparameters",
        "weight decay as specified in the\ntable.",
    ),
    ("FC23", "8"): (
        "D.4 DP-Newton hyperparameters",
        "weight decay as specified in the table.",
    ),
    ("FC23", "9"): (
        "D.5 DP-FC hyperparameters",
        "weight decay as specified in the table.",
    ),
    ("TB21", "1"): ("Table 1: Test accuracy", "8.0\tChen & Lee (2020)\t53.0\t—\t—"),
    ("TB21", "2"): ("Table 2: Effect of feature", "71.1 ±\t0.0"),
    ("TB21", "3"): ("Table 3: Variability", "52.5\t5.4"),
    ("TB21", "10"): ("Table 10: Hyper", "Best ChoiCe of groups G\t27\t81\t27"),
    ("TB21", "11"): ("Table 11: Test accuracy", "80.0\t±\t0.1"),
    ("TB21", "12"): ("Table 12: Hyper", "(1.0, 1.5, {6, 8})"),
    ("TB21", "13"): ("Table 13: Set", "Data Norm. σnorm\t8\t8\t-\t-\t-\t-\t8\t8\t-"),
    ("TB21", "14"): ("Table 14: Hyper", "(14 4)\t60\tData Norm. (σnorm\t= 8)"),
    ("TB21", "16"): ("Table 16: Set", "C.8 Evaluation"),
    ("TB21", "17"): ("Table 17: Hyper", "Epochs T\t{15, 25, 40}\t40\t40"),
    ("TB21", "19"): ("Table 19:", "59.2\t±\t0.1"),
    ("TB21", "20"): ("Table 20:\tBest", "551K 59.2 ± 0.1"),
    ("De22", "1"): ("Dataset\tPre-Training", "Table 1 |"),
    ("De22", "2"): ("Table 2 | An ablation study", "79.7 (0.2)\t81.5 (0.2)"),
    ("De22", "3"): (
        "\t\tTest Acc\turacy (%)\n\tε\tMedian",
        "Table 3 | CIFAR-10 test accuracy",
    ),
    ("De22", "4"): ("Table 4 | Top-1", "32.4\t55.8"),
    ("De22", "5"): ("Fine-tuning Method\tε\tCI\tFAR-10", "Table 5 | CIFAR-10"),
    ("De22", "6"): ("Accuracy (%)\t\t\t٤", "Table 6 | ImageNet"),
    ("De22", "7"): ("Table 7 | Places-365", "57.0\t87.1"),
    ("De22", "9"): ("Table 9 | Phase II", "4.327\t0.91\t0.67\t1.00"),
    ("De22", "10"): ("Table 10 | Test accuracy", "8\t95.6"),
    ("De22", "11"): ("ε\tMethod\tTest Accuracy (%)", "Table 11 | Test accuracy"),
    ("De22", "13"): ("Table 13 Hyper-parameters for", "3.0 1843\t3.0 2468"),
    ("De22", "14"): ("Table 14 | Hyper", "2007\t2000"),
    ("De22", "15"): ("Table 15 | Hyper", "71589"),
    ("De22", "16"): ("71589\n", "Table 16 | Hyper"),
    ("De22", "17"): ("Table 17 | Hyper", "Table 18 | Hyper"),
    ("De22", "18"): ("Table 18 | Hyper", "Table 19 | Hyper"),
    ("De22", "19"): ("Table 19 | Hyper", "Number of updates\t250\t500\t1000\t2000"),
    ("De22", "20"): ("Hyper-parameter\t\t\t\tValue\t\t\t\n", "Table 20 | Hyper"),
    ("De22", "21"): ("Table 21 | Hyper", "Table 22 | Hyper"),
    ("De22", "22"): ("Table 22 | Hyper", "Table 23 | Hyper"),
    ("De22", "23"): ("Table 23 | Hyper", "∞ 0.1 0.0 46500"),
    ("TAN23", "1"): ("Method\t$(arepsilon,\\delta)$\tACCURACY", "39.2%</b>"),
    ("TAN23", "2"): ("Table 2. Comparing", "+6.7%"),
    ("TAN23", "3"): ("Table 3. Low compute", "-1.88%"),
    ("TAN23", "4"): ("Table 4. Privacy parameter", "36.1%"),
    ("TAN23", "5"): ("Table 5. Impact", "(\\pm 0.5)$"),
    ("TAN23", "6"): ("Table 6. Impact", "+1.5%"),
}


def text_of(paper: str) -> str:
    """Return a paper's text; skip the test where there are no texts."""
    if not FOLDER.is_dir():
        pytest.skip("needs ../shared/papers (the papers' texts) beside the repository")
    return (FOLDER / TEXTS[paper]).read_text()


def span(paper: str, table: str) -> str:
    """Return a table's part of its paper's text."""
    text, (first, last) = text_of(paper), SPANS[paper, table]
    assert text.count(first) == 1, (
        f"{paper} Table {table}: {first!r} must stand in the text once"
    )
    start = text.index(first)
    return text[start : text.index(last, start + len(first)) + len(last)]
