"""Print the lowest versions that pyproject.toml allows, as pip's constraints
(`make lowest`).
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

EXTRAS = ("extract",)  # of what `make lowest` and `make lowest-torch` install
# Without which the tests do not run, at any version.
BOUND = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9.]+)")


def lowest(text: str) -> Iterator[str]:
    """name==version of each requirement of a pyproject.toml that has a lower bound."""
    project = tomllib.loads(text)["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    for requirement in wanted:
        match = BOUND.match(requirement)
        if match is None:
            raise ValueError(
                f"a requirement must have a lower bound, got {requirement!r}. Add it."
            )
        yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    print(*lowest((root / "pyproject.toml").read_text()), sep="\n")
