"""`make pictures`: what every command prints, typed in a terminal of its own, as the
pictures of docs/tour.md; and the privacy card, by Chromium where it is installed.

On scikit-learn's digits; each run draws new noise, so numbers differ. No picture
may hold a file's path on this machine, nor ask the network for a font.
"""

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from benchmarks import tour

OUT = Path("docs/pictures/commands")
CARD = Path("docs/pictures/card.png")
WIDTH = 80
NETWORK = "--model wrn-10-1 --image-size 8 --classes 10 --split train --test-split test"
SHARD = tour.COMMANDS[0].replace("digits.h5", "parts.h5")
PAGE = (1000, 1540)  # pixels of the card's picture; chosen by looking at it
# a name of each picture, and what is typed, one after the other
COMMANDS = {
    "extract": tour.COMMANDS[0],
    # before there is a budget, which refuses exact figures on its images
    "simulate": f"dphead tan simulate digits/ --data-is public {NETWORK} "
    "--batch-size 512 --noise-multiplier 4 --steps 20 --factors 2,4,8 --runs 2",
    "verify": "dphead verify digits.h5",
    "plan": "dphead plan digits.h5 --split train --public-rows --n-rows 5000",
    "budget": tour.COMMANDS[1],
    "dry-run": "dphead fit digits.h5 --split train --method dp-ls -o ridge --dry-run",
    "fit": tour.COMMANDS[2] + " --test-is public",
    "check": tour.COMMANDS[3],
    "predict": tour.COMMANDS[4],
    "evaluate": "dphead evaluate run digits.h5 --split test",
    "ledger": "dphead ledger show digits.h5",
    "ledger-verify": "dphead ledger verify digits.h5",
    "report": "dphead report run --card",
    "export": "dphead export run --to torch",
    "account": "dphead account --epsilon 1 --delta 1e-5",
    "import": "dphead features import table.csv -o table.h5 --classes 2",
    "audit": "dphead audit --method dp-ls --epsilon 4 --n-rows 64 --n-features 4 "
    "--n-classes 2 --fits 500 -o audit",
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
COLORS = re.compile(r"\x1b\[[0-9;]*m")
OUTER_FONT = re.compile(r"@font-face \{\{.*?\n    \}\}\n", re.DOTALL)


def write(out: Path = OUT, card: Path = CARD) -> list[Path]:
    """Run the commands, draw what they print, and the card; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = printed(folder)
        paths = [draw(out, name, text) for name, text in texts.items()]
        if (browser := shutil.which("chromium")) is not None:
            photograph(browser, folder / "run" / "report.html", card)
            paths.append(card)
    return paths


def printed(folder: Path, width: int = WIDTH) -> dict[str, str]:
    """What each command prints in a terminal so wide, with its colors.

    folder: an empty one, for the images and all that the commands write. SystemExit
    with what was printed if one ends as it should not, or prints a wider line.
    """
    tour.write_images(folder)
    (folder / "table.csv").write_text(_table())
    home = folder / "ledgers"
    found = {}
    for name, command in COMMANDS.items():
        code, said = in_terminal(command, folder, home, width)
        text = said.replace(str(home), tour.HOME)
        if code or widest(text) > width:
            raise SystemExit(f"$ {command}\n{text}")
        found[name] = text
    return found


def widest(text: str) -> int:
    """Columns of the widest line."""
    lines = COLORS.sub("", text).splitlines()
    return max(map(len, lines), default=0)


def _table() -> str:
    """Embeddings of somebody else's network: 60 rows of 3 numbers and a class."""
    lines = ["a,b,c,label"]
    lines += [f"{i % 7},{i % 5},{i % 3},{i % 2}" for i in range(60)]
    return "\n".join(lines) + "\n"


def in_terminal(command: str, folder: Path, home: Path, width: int) -> tuple[int, str]:
    """Exit code and standard output of a command that thinks it writes to a terminal.

    Progress, on standard error, is left out; what is for the data holder alone is not.
    """
    root = str(Path(__file__).parents[1])
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")},
        "DPHEAD_HOME": str(home),
        "PYTHONPATH": root,
        "TERM": "xterm-256color",
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    words = [sys.executable, "-m", *shlex.split(command)]
    with open(folder / "said", "w+b") as said:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=theirs, stderr=said
        )
        os.close(theirs)
        text = _all_of(ours)
        process.wait()
        said.seek(0)
        private = tour.PROGRESS.sub("", said.read().decode())
    return process.returncode, text.replace("\r\n", "\n") + private


def _all_of(terminal: int) -> str:
    """What is written to a terminal until its other end is closed."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that nobody writes any more
            part = b""
        if not part:
            os.close(terminal)
            return b"".join(parts).decode()
        parts.append(part)


def draw(out: Path, name: str, text: str, width: int = WIDTH) -> Path:
    """A picture of a terminal in which a command was typed."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    console = Console(record=True, width=width, file=io.StringIO())
    for line in tour.typed(COMMANDS[name]):
        console.print(Text(line, "bold"))
    console.print(Text.from_ansi(text.rstrip()))
    console.print()  # rich cuts off what hangs below the last line
    path = out / f"{name}.svg"
    console.save_svg(
        str(path),
        title=COMMANDS[name].split(" -")[0],
        theme=SVG_EXPORT_THEME,
        code_format=OUTER_FONT.sub("", CONSOLE_SVG_FORMAT),
        unique_id=name,
    )
    return path


def photograph(browser: str, page: Path, picture: Path) -> None:
    """A page as Chromium shows it, in its light colors, of which 64 are enough."""
    from PIL import Image

    width, height = PAGE
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
