"""The examples of pages, and a process in which dphead cannot be imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dphead", "extract"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
"""


def without_dphead(folder, code):
    """Run code in a process in which dphead cannot be imported."""
    (folder / "sitecustomize.py").write_text(BLOCKED)
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def holds(folder, *texts):
    """Return the files of a folder that hold a text, or a path of this machine.

    Python's cache of code that was run there does not count.
    """
    places = (DOCS.parent, folder.parent, Path.home(), Path(sys.prefix))
    wanted = [str(one).encode() for one in (*places, *texts)]
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    files = [one for one in files if one.parent.name != "__pycache__"]
    return [f.name for f in files if any(one in f.read_bytes() for one in wanted)]


def documented(name, page="export.md"):
    """The code block of a page of docs/ after `<!-- example: name -->`."""
    pattern = f"<!-- example: {name} -->\n```python\n(.*?)```"
    (code,) = re.findall(pattern, (DOCS / page).read_text(), re.DOTALL)
    return code


def resnet(**options):
    """A small timm model with random weights and batch statistics."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", **options)
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(part.weight)
    return model
