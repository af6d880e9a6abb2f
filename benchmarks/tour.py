"""`make tour`: write the output of COMMANDS to docs/tour.md, and draw the card.

The images are 1,797 of scikit-learn's digits. Each run draws new noise, so numbers
differ. The output must not contain a path of this machine. Chromium draws the privacy
card, if it is installed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.demo import write_images

PAGE = Path("docs/tour.md")
CARD = Path("docs/pictures/card.png")
CARD_SIZE = (1000, 1540)  # pixels that show the whole card
EXTRACT = (
    "dphead extract digits/ -o digits.h5 --layout split/class --classes 10 "
    "--backbone scatternet --image-size 8 --channels 1 --scatter-j 1"
)
SHARD = EXTRACT.replace("digits.h5", "parts.h5")
FIT = "dphead fit digits.h5 --split train --test-split test -o run"
NETWORK = "--model wrn-10-1 --image-size 8 --classes 10 --split train --test-split test"
# in the order in which they run
COMMANDS = {
    "extract": EXTRACT,
    # run before the budget is set: after that, exact figures on its images are refused
    "simulate": f"dphead tan simulate digits/ --public-rows {NETWORK} "
    "--batch-size 512 --noise-multiplier 4 --steps 20 --factors 2,4,8 --runs 2",
    "verify": "dphead verify digits.h5",
    "plan": "dphead plan digits.h5 --split train --public-rows --n-rows 5000",
    "budget": "dphead ledger budget digits.h5 --epsilon 3 --delta 1e-5",
    "dry-run": "dphead fit digits.h5 --split train --method dp-ls -o ridge --dry-run",
    "fit": FIT,
    "check": "dphead check run",
    "predict": "dphead predict run new_images/ -o predictions.csv",
    "evaluate": "dphead evaluate run digits.h5 --split test",
    "ledger": "dphead ledger show digits.h5",
    "ledger-verify": "dphead ledger verify digits.h5",
    "report": "dphead report run --card",
    "export": "dphead export run --to torch",
    "account": "dphead account --epsilon 1 --delta 1e-5",
    "import": "dphead features import table.csv -o table.h5 --classes 2",
    "audit": "dphead audit --method dp-ls --epsilon 4 --sizes 64,4,2 --fits 500 "
    "-o audit",
    "shard-0": f"{SHARD} --shard 0/2",
    "shard-1": f"{SHARD} --shard 1/2",
    "join": "dphead features join parts.shard-0-of-2.h5 parts.shard-1-of-2.h5 "
    "-o parts.h5",
    "finetune": f"dphead finetune digits/ -o network --layout split/class {NETWORK} "
    "--test-is public --epsilon 1 --batch-size 1347 --steps 20",
    "tan": "dphead tan plan --n-rows 50000 --epsilon 8 --delta 1e-5",
    "tan-show": "dphead tan show --n-rows 50000 --batch-size 4096 --steps 2500 "
    "--noise-multiplier 3 --delta 1e-5",
}
# a card with an accuracy; in a separate home, so that it is the first fit
CARD_COMMANDS = (
    COMMANDS["budget"],
    FIT.replace("-o run", "-o public --test-is public"),
)
HOME = "~/.local/share/dphead"  # printed instead of this run's folder of ledgers
WIDTH = 80
PROGRESS = re.compile(r"^.* \(\d+ s\)\n", re.MULTILINE)  # lines of a slow command
BLOCK = re.compile(r"(<!-- tour: ([a-z0-9 -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write() -> list[Path]:
    """Run the commands, and put their output between the markers of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said = run(folder)
        written = [PAGE]
        if (browser := shutil.which("chromium")) is not None:
            photograph(browser, folder / "public" / "report.html", CARD)
            written.append(CARD)

    def filled(match: re.Match[str]) -> str:
        begin, names, end = match.groups()
        text = "\n\n".join(said[name] for name in names.split())
        return f"{begin}```text\n{text}\n```\n{end}"

    PAGE.write_text(BLOCK.sub(filled, PAGE.read_text()))
    return written


def run(folder: Path) -> dict[str, str]:
    """Run the commands in an empty folder. Return each with what it prints.

    Raises SystemExit with the output if a command fails or prints a wider line.
    """
    write_images(folder)
    rows = [f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(60)]
    (folder / "table.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    said = {name: shown(line, folder, "ledgers") for name, line in COMMANDS.items()}
    for line in CARD_COMMANDS:
        shown(line, folder, "other")
    return said


def shown(command: str, folder: Path, home: str) -> str:
    """Run a command in a folder, with its ledgers in `home`. Return what is shown."""
    place = folder / home
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "DPHEAD_HOME": str(place), "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = PROGRESS.sub("", done.stdout).replace(str(place), HOME)
    lines = [*typed(command), *map(str.rstrip, text.rstrip().splitlines())]
    if done.returncode or max(map(len, lines)) > WIDTH:
        raise SystemExit("\n".join(lines))
    return "\n".join(lines)


def typed(command: str) -> list[str]:
    """Return a command as lines to type. An option and its value share a line."""
    lines = ["$"]
    for part in re.split(r" (?=-)", command):
        if len(lines[-1]) + len(part) > WIDTH - 3:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    return lines


def photograph(browser: str, page: Path, picture: Path) -> None:
    """Draw a page in its light colors with Chromium. 64 colors are enough."""
    from PIL import Image

    width, height = CARD_SIZE
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--hide-scrollbars", f"--window-size={width},{height}"),
            *(f"--screenshot={picture.resolve()}", f"--user-data-dir={profile}"),
            page.resolve().as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True)
    with Image.open(picture) as taken:
        small = taken.convert("RGB").quantize(64)
    small.save(picture, optimize=True)
