"""`make tour`: the five commands of docs/tour.md, and what they print.

1,347 of scikit-learn's digits as image files, and 450 to measure on; each run draws new
noise, so numbers differ.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.demo import write_images

COMMANDS = (
    "dphead extract digits/ -o digits.h5 --layout split/class --classes 10 "
    "--backbone scatternet --image-size 8 --channels 1 --scatter-j 1",
    "dphead ledger budget digits.h5 --epsilon 3 --delta 1e-5",
    "dphead fit digits.h5 --split train --test-split test -o run",
    "dphead check run",
    "dphead predict run new_images/ -o predictions.csv",
)
HOME = "~/.local/share/dphead"  # what is printed for the folder of this run's ledgers
WIDTH = 80
PROGRESS = re.compile(r"^.* \(\d+ s\)\n", re.MULTILINE)  # of a machine that is busy
BLOCK = re.compile(r"(<!-- tour -->\n).*?(<!-- end -->)", re.DOTALL)


def run() -> str:
    """The commands and their output, as a block of code."""
    import os

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        home = folder / "ledgers"
        environment = {**os.environ, "DPHEAD_HOME": str(home)}
        root = str(Path(__file__).parents[1])
        environment["PYTHONPATH"] = root
        lines = []
        for command in COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", *command.split()],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise SystemExit(done.stdout)
            said = PROGRESS.sub("", done.stdout)
            lines += [*typed(command), *said.rstrip().splitlines(), ""]
        text = "\n".join(lines).replace(str(home), HOME)
    return f"```text\n{text.rstrip()}\n```\n"


def typed(command: str) -> list[str]:
    """A command as it is typed, on as many lines as it takes; an option's value stays
    beside it.
    """
    lines = ["$"]
    for part in re.split(r" (?=-)", command):
        if len(lines[-1]) + len(part) > WIDTH - 3:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    return lines


def write(page: Path = Path("docs/tour.md")) -> None:
    """Put the output of a run between the markers in the page."""
    block = run()
    text = page.read_text()
    page.write_text(BLOCK.sub(lambda m: m.group(1) + block + m.group(2), text))
