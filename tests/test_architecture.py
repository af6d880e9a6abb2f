"""The import rules of ARCHITECTURE.md: who may import whom, read from the sources, also
inside functions.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each room and the rooms, or the modules of them, that it may import, besides itself. A
# new one needs a line here and in ARCHITECTURE.md.
ALLOWED: dict[str, set[str]] = {
    "extract": set(),
    "dphead": {"dphead.estimators"},  # lazily: tests/test_imports.py
    "dphead.privacy": set(),
    "dphead.sums": {
        "dphead.privacy.contract",
        "dphead.privacy.predictions",
        "dphead.privacy.query",
        "dphead.privacy.statistics",
        "dphead.privacy.transform",
    },
    "dphead.rows": {
        "dphead.privacy.contract",
        "dphead.privacy.sampling",
        "extract.format",
    },
    "dphead.solvers": {
        "dphead.privacy.predictions",
        "dphead.privacy.query",
        "dphead.privacy.statistics",
        "dphead.privacy.transform",
    },
    "dphead.planning": {"dphead.privacy", "dphead.solvers"},
    "dphead.analysis": {
        "dphead.planning",
        "dphead.privacy",
        "dphead.rows",
        "dphead.solvers",
        "dphead.sums",
        "extract.format",
    },
    "dphead.runs": {
        "dphead.analysis",
        "dphead.planning",
        "dphead.privacy",
        "dphead.rows",
        "dphead.solvers",
        "dphead.sums",
        "extract",
    },
    "dphead.estimators": {
        "dphead.analysis",
        "dphead.planning",
        "dphead.privacy",
        "dphead.rows",
        "dphead.runs",
        "dphead.solvers",
    },
    "dphead.endtoend": {
        "dphead.analysis",
        "dphead.estimators",
        "dphead.planning",
        "dphead.privacy",
        "dphead.rows",
        "dphead.runs",
        "dphead.solvers",
        "dphead.sums",
        "extract",
    },
    "dphead.cli": {"dphead", "extract"},
    "dphead.__main__": {"dphead.cli"},
    "benchmarks": {"dphead", "extract"},
    "mutants": {"dphead", "extract"},
}
WITH_TORCH = {"dphead.endtoend", "dphead.runs.portable", "dphead.cli", "benchmarks"}
ARROWS = 50  # between folders but mutants, at most
TOP = ("dphead", "extract", "benchmarks", "mutants")


def sources() -> list[str]:
    """Every module's path, from the project's root."""
    folders = (ROOT / name for name in TOP)
    return sorted(
        str(p.relative_to(ROOT)) for folder in folders for p in folder.rglob("*.py")
    )


def module_name(path: str) -> str:
    """dphead/privacy/ledger.py → dphead.privacy.ledger"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def ours(path: str) -> set[str]:
    """The project's modules that a source imports."""
    found = imported(ROOT / path, module_name(path))
    return {m for m in found if m.split(".")[0] in TOP}


def part_of(module: str) -> str:
    """The line of ALLOWED that a module belongs to."""
    names = module.split(".")
    return names[0] if names[0] != "dphead" else ".".join(names[:2])


def imported(path: Path, module: str) -> Iterator[str]:
    """Modules that a source imports, absolute; `from package import x` counts as
    package.x where that is a module.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} must use absolute imports"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else node.module


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or package of the project."""
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def within(module: str, parts: set[str]) -> bool:
    """Whether a module is one of the parts or inside one."""
    return any(module == part or module.startswith(part + ".") for part in parts)


@pytest.mark.parametrize("path", sources())
def test_imports_go_one_way(path):
    module = module_name(path)
    part = part_of(module)
    assert part in ALLOWED, (
        f"{part} is new: give it a line in ALLOWED and in ARCHITECTURE.md"
    )
    own = {part} if part != "dphead" else set()
    public = (
        {"dphead"}
        if part not in ("extract", "dphead.privacy", "dphead.analysis.metrics")
        else set()
    )  # __version__
    wrong = {
        m for m in ours(path) if not within(m, ALLOWED[part] | own) and m not in public
    }
    assert not wrong, f"{module} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", sources())
def test_each_side_leaves_the_others_libraries_alone(path):
    module = module_name(path)
    libraries = {m.split(".")[0] for m in imported(ROOT / path, module)}
    if part_of(module) == "extract":
        assert not libraries & {"jax", "dphead", "sklearn"}
    elif not within(module, WITH_TORCH):
        assert not libraries & {"torch", "timm"}


def arrows() -> set[tuple[str, str]]:
    """(importing, imported) of folders that differ; modules at the top are in none."""
    found = set()
    for path in sources():
        importing = part_of(module_name(path))
        for module in ours(path):
            found.add((importing, part_of(module)))
    aside = {"dphead", "dphead.__main__", "mutants"}
    return {(a, b) for a, b in found if a != b and not {a, b} & aside}


def test_there_are_few_arrows_between_folders_and_no_circle():
    found = arrows()
    assert len(found) <= ARROWS
    assert circle(found) == []


def circle(found: set[tuple[str, str]]) -> list[str]:
    """The folders that are left when those that import no other are taken away, again
    and again.
    """
    left = {folder for pair in found for folder in pair}
    while ends := {a for a in left if not any(a == x and y in left for x, y in found)}:
        left -= ends
    return sorted(left)


def test_a_circle_is_seen():
    assert circle({("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")}) == ["a", "b", "c"]


def test_the_rules_notice_a_forbidden_import(tmp_path):
    source = tmp_path / "bad.py"
    source.write_text(
        "def f():\n    from dphead import estimators\n    import dphead.cli.fit\n"
    )
    assert set(imported(source, "bad")) == {"dphead.estimators", "dphead.cli.fit"}
    assert not within("dphead.estimators", ALLOWED["dphead.solvers"])
    assert not within("dphead.privacy.ledger", ALLOWED["dphead.solvers"])


def test_one_function_of_the_audited_folder_makes_events_of_releases():
    """A second derivation could differ from the first, as three of them once could."""
    found = []
    for path in sorted((ROOT / "dphead/privacy").glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = (n.func for n in ast.walk(function) if isinstance(n, ast.Call))
            if "GaussianEvent" in [
                getattr(f, "id", getattr(f, "attr", "")) for f in calls
            ]:
                found.append(f"{path.stem}.{function.name}")
    assert found == ["accounting.event_of"]


# --- private names --------------------------------------------------------------------

# private names of libraries: what they offer for it has none in public, and why
BORROWED = {
    "_asdict": "a named tuple's own, public",
    "_exit": "os: ends a process at once, whatever its threads do",
    "_getframe": "sys: whose pipeline calls a fit",
    "_BatchNorm": "torch: what all batch norms are",
    "_compute_rdp_poisson_subsampled_gaussian": "dp-accounting: RDP at one order",
    "_compute_rdp_repeat_and_select": "dp-accounting: RDP of a choice",
    "_jax": "jax: sums of processes that listen on loopback alone",
}


def private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def borrowed(source: str) -> set[str]:
    """Private names of elsewhere that a source uses: imported, or asked of an object
    that is not its own (self, which a mixin of another module shares, and cls are).
    """
    nodes = list(ast.walk(ast.parse(source)))
    own = {getattr(node, "name", "") for node in nodes}
    own |= {n.id for n in nodes if isinstance(n, ast.Name)}
    stored = (n for n in nodes if isinstance(n, ast.Attribute))
    own |= {n.attr for n in stored if isinstance(n.ctx, ast.Store)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names if private(alias.name)}
        elif isinstance(node, ast.Attribute) and private(node.attr):
            mine = ast.unparse(node.value) in ("self", "cls", "super()")
            if not mine and node.attr not in own:
                found.add(node.attr)
    return found


def test_no_module_uses_anothers_private_name():
    """What two modules use is public, in the one where it belongs."""
    found = {path: borrowed((ROOT / path).read_text()) for path in sources()}
    wrong = {path: names - set(BORROWED) for path, names in found.items()}
    assert {path: names for path, names in wrong.items() if names} == {}
    assert set().union(*found.values()) == set(BORROWED)


def test_a_private_name_of_elsewhere_is_noticed():
    source = "from a import _b\nimport c\nc._d\nself._e\nother._f = 1\nother._f\n"
    assert borrowed(source) == {"_b", "_d"}


# --- where a reader looks -------------------------------------------------------------

# tests of no module but of what several do together, and what each is about
TOGETHER = {
    "analysis/card/test_cards.py": "the card's modules, on one report",
    "cli/test_arguments.py": "every option of fit, with a value that cannot be",
    "cli/test_memory.py": "the bound on memory, as a user sets it",
    "endtoend/test_arguments.py": "every option and parameter of a network's training",
    "endtoend/test_places.py": "a row's bits, at every place of a chunk",
    "endtoend/test_threads.py": "a row's bits, on any number of torch's threads",
    "endtoend/test_training.py": "gradients, network and release: a row's part",
    "estimators/test_arguments.py": "every parameter, with values that cannot be",
    "estimators/test_checks.py": "scikit-learn's own checks",
    "estimators/test_hostile.py": "numbers that make numpy warn, in every estimator",
    "privacy/test_audit.py": "AUDIT.md: what it names is there",
    "privacy/test_coupling.py": "noise, sample and charge come from one spec",
    "privacy/test_groups.py": "groups, from the cap to the accountant",
    "privacy/test_label_sets.py": "rows of several classes, bound and sum",
    "privacy/test_places.py": "a row's part does not depend on where it stands",
    "runs/test_elsewhere.py": "fits on the same images in other ledgers",
    "solvers/test_against_references.py": "solvers beside scikit-learn's and scipy's",
    "test_architecture.py": "this file",
    "test_docs.py": "pages: links, commands, options, printed limits",
    "test_imports.py": "what an import loads",
    "test_packaging.py": "what a wheel holds",
    "test_pipeline.py": "images to predictions",
}
PROHIBITION = re.compile(r"\b(may|must|no|not|nor|nothing|never|neither|alone)\b", re.I)


def test_every_test_file_is_named_after_what_it_tests():
    tests = ROOT / "tests"
    found = {str(p.relative_to(tests)) for p in tests.rglob("test_*.py")}
    mirrored = {
        name
        for name in found
        for top in ("", "dphead/", "benchmarks/")
        if is_module((top + name.replace("test_", "")).removesuffix(".py"))
    }
    assert found - mirrored == set(TOGETHER)


@pytest.mark.parametrize("top", [*TOP, "tests"])
def test_every_module_says_what_it_is_for(top):
    """In a first line that ends, and a room also what may not be done in it."""
    for path in sorted((ROOT / top).rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        first = text.split("\n\n")[0].rstrip()
        assert len(first) > 10 and first[-1] in ".:", path
        if path.name == "__init__.py" and path.parent.parent.name == "dphead":
            assert PROHIBITION.search(text), path


ONLY_NUMBERS = (ast.BinOp, ast.Constant, ast.Load, ast.Tuple, ast.UnaryOp)
OPERATORS = (ast.operator, ast.unaryop)


def bare_numbers(source: str) -> list[int]:
    """Lines of a module's numbers that no comment explains, in the line or above it in
    the same paragraph.
    """
    lines = source.splitlines()
    found = []
    for node in ast.parse(source).body:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
            continue
        parts = list(ast.walk(value))
        numbers = [type(p.value) for p in parts if isinstance(p, ast.Constant)]
        if not set(numbers) & {int, float}:
            continue
        if not all(isinstance(p, (*ONLY_NUMBERS, *OPERATORS)) for p in parts):
            continue
        start = node.lineno - 1
        while start > 0 and lines[start - 1].strip():
            start -= 1
        above = any(line.startswith("#") for line in lines[start : node.lineno])
        beside = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
        if not above and not beside:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("top", ["dphead", "extract"])
def test_every_number_says_what_it_is(top):
    """And where it was measured, from which paper it is, or that it was chosen: which
    of them is for a reader to judge.
    """
    found = {p: bare_numbers(p.read_text()) for p in (ROOT / top).rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_bare_number_is_noticed():
    source = "A = 2**3\n\nB = 3  # chosen\n\n# chosen\nC = 1\nD = (4, -5)\n\nE = 1.5\n"
    assert bare_numbers(source) == [1, 9]


def named_files(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each file that the map names, and the paths that its name may stand for: in a
    room's row or paragraph below that room, elsewhere in dphead/, or its whole path.
    """
    section, around = "", [""]
    for line in text.splitlines():
        section = line if line.startswith("## ") else section
        opening = line.split("|")[1] if line.startswith("|") else line
        opened = re.findall(r"`([\w/]+/)`", opening)
        bases = ["dphead/"]
        if section == "## Rooms":
            bases = opened
        elif section == "## Beside the library":
            if line.startswith("**"):
                around = re.findall(r"\*\*`([\w/]+/)`", line)
            bases = around
            if line.startswith("|"):
                bases = around + [top + folder for top in around for folder in opened]
        for name in re.findall(r"`([\w/]+\.py)`", line):
            whole = [name] if "/" in name else []
            yield name, whole + [base + name for base in bases]


def lost(text: str) -> list[str]:
    """Files that a map names and that are not where it says."""
    named = named_files(text)
    return [n for n, paths in named if not any((ROOT / p).is_file() for p in paths)]


def test_every_room_and_file_that_the_map_names_is_there():
    """And every room is on it."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {part.replace(".", "/") for part in ALLOWED if "__" not in part}
    missing = [room for room in rooms - {"dphead"} if f"`{room}/`" not in text]
    assert missing == []
    assert len({name for name, _ in named_files(text)}) > 90
    assert lost(text) == []


def test_a_file_of_another_room_is_noticed():
    text = (
        "## Rooms\n| `dphead/sums/` | | `door.py`, `ledger.py` |\n## Where\n"
        "| `x/` | `privacy/ledger.py`, `ledger.py`, `extract/run.py`, `door.py` |\n"
        "## Beside the library\n**`benchmarks/`**: `store.py`, `door.py`\n"
        "| `faults/` | `processes.py`, `store.py`, `door.py` |\n"
    )
    assert lost(text) == ["ledger.py", "ledger.py", "door.py", "door.py", "door.py"]


# trusted for whole networks alone: of endtoend/, and extract's threads
TRUSTED = {"gradients", "network", "rows", "augment", "models", "architectures"}
TRUSTED |= {"threads", "vectors"}
PAGES = ("AUDIT.md", "READING.md", "proofs/finetune.md")


def trusted(text: str) -> set[str]:
    """The files of the one row or paragraph that names `architectures.py`."""
    parts = re.split(r"\n(?=\||\n|\d\. )", text)
    (found,) = [part for part in parts if "`architectures.py`" in part]
    names = re.findall(r"`(?:[\w/]+/)?(\w+)\.py`", found)
    return set(names) - {"run", "statistics"}  # where to begin; heads have them too


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", *PAGES])
def test_every_page_names_the_same_files_that_networks_trust(page):
    folder = ROOT / "dphead/privacy" if page in PAGES else ROOT
    assert trusted((folder / page).read_text()) == TRUSTED
    assert trusted("1. `a.py`\n2. `x/b.py`,\n   `architectures.py`") == {
        "b",
        "architectures",
    }
