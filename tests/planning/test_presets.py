"""Each field of a preset is read in its paper's text, by table and row.

`FIELDS` says where a field stands, or None where the paper does not say it; no number
is written here that the text prints.
"""

import re
from fractions import Fraction

import pytest
from papers import span, text_of

from dphead.planning import presets

# what says something about a preset, and is no number of a paper
ABOUT = {"source", "needs", "network"}
# what no paper prints: whether rows stay as they are, and the constant of a bias
UNPRINTED = {"left_to_the_user", "unit_norm", "intercept"}
ALL = slice(None)
FIRST, SECOND = slice(0, None, 2), slice(1, None, 2)  # of two rows that stand in one


def values(text):
    """Every number in a text, in order and without its sign: 8 \\cdot 10^{-7}, 10-5,
    10⁻⁵, [10−8, 108], ¼, 72K.
    """
    marks = {
        "−": "-",
        "⁻": "-",
        "⁵": "5",
        "⁷": "7",
        ", 108]": ", 1e8]",
        "½": "1/2",
        "¼": "1/4",
    }
    for printed, plain in marks.items():
        text = text.replace(printed, plain)
    text = re.sub(r"\\infty|∞", " inf ", text)
    text = re.sub(
        r"(?:(\d+) ?(?:\\cdot|·) ?)?\b10 ?\^?\{?-(\d+)\}?",
        lambda m: f" {m[1] or 1}e-{m[2]} ",
        text,
    )
    text = re.sub(r"(\d+) ?(?:<b>)?(?:\\mathrm\{|\{\\rm ?)?[Kk]\b", r" \g<1>000 ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    found = re.findall(r"\d+ ?/ ?[1-9]\d*|\d+(?:\.\d+)?(?:e-?\d+)?|inf", text)
    return [float(Fraction(n.replace(" ", "")) if "/" in n else n) for n in found]


def row(paper, table, label, *part):
    """Read numbers of the rows of a table that begin with `label`, after it.

    part: a slice, or positions; all by default.
    """

    def read():
        lines = span(paper, str(table)).splitlines()
        found = [
            values(line.removeprefix(label)) for line in lines if line.startswith(label)
        ]
        assert found, f"{paper} Table {table} has no row {label!r}"
        where = part or (ALL,)
        taken = [n[p] for n in found for p in where]
        return [n for one in taken for n in (one if isinstance(one, list) else [one])]

    return read


def column(paper, table, labels, at):
    """Read a number of each of several rows, by position in the row with its label."""

    def read():
        lines = span(paper, str(table)).splitlines()
        rows = [line for label in labels for line in lines if line.startswith(label)]
        assert len(rows) == len(labels), (paper, table, labels)
        return [values(line)[at] for line in rows]

    return read


def said(paper, words, *meant):
    """Read the numbers of a sentence that stands in the text, or what it means."""

    def read():
        text = " ".join(text_of(paper).split())
        assert " ".join(words.split()) in text, f"{paper} does not say {words!r}"
        return list(meant) or values(words)

    return read


def both(*reads):
    """Read several places, one after another."""
    return lambda: [value for read in reads for value in read()]


def de22(table, labels):
    """A De22 table: `labels` holds each row's fields, by its label in the text."""
    found = {}
    for label, fields in labels.items():
        for part, field in zip((FIRST, SECOND), fields, strict=False):
            where = part if len(fields) == 2 else ALL
            found[field] = row("De22", table, label, where)
    return found


SGD, COLUMN = "dp-sgd.", "columns."
AUGMENTED = SGD + "augmentation_multiplicity"
BATCH, CLIP, RATE = SGD + "batch_size", SGD + "clip_norm", SGD + "learning_rate"
EPSILON, NOISE = COLUMN + "epsilon", COLUMN + "noise_multiplier"
STEPS, RATES = COLUMN + "steps", COLUMN + "learning_rate"
DECAY, MOMENTUM = SGD + "ema_decay", SGD + "momentum"

# --- De22: appendix C -----------------------------------------------------------------

DE22 = {
    "accountant": said("De22", "default Rényi DP privacy accountant", "rdp"),
    SGD + "loss": said("De22", "the cross-entropy loss", "softmax"),
    MOMENTUM: said("De22", "DP-SGD without Momentum (Equation (3))", 0.0),
    SGD + "normalize": said("De22", "the privatized gradient is normalized by C", True),
    SGD + "average": said("De22", "we use EMA with a warm-up schedule", "ema"),
    DECAY: said("De22", "we use a decay rate of 0.99999."),
}
CIFAR = DE22 | {DECAY: said("De22", "we use a decay rate of 0.9999.")}
LAST = {
    SGD + "layers": said("De22", "where we only train the final classifier layer", 1)
}
FRACTION = r"$\frac{\varepsilon}{\delta}$"
TABLE_17 = {
    FRACTION: (EPSILON, "delta"),
    "Augmentation multiplicity": (AUGMENTED,),
    "Batch-size": (BATCH,),
    "Clipping-norm": (CLIP,),
    "Learning-rate": (RATE,),
    "Noise multiplier σ": (NOISE,),
    "Number of updates": (STEPS,),
}
BELOW_23 = "Clipping-norm Learning-rate Noise multiplier σ Number of updates"


def places(at, last=False):
    """De22 Table 23's columns of a finite epsilon, from 0."""
    fields = (CLIP, RATE, NOISE, SGD + "steps")
    found = {
        field: row("De22", 23, BELOW_23, 4 * at + i) for i, field in enumerate(fields)
    }
    budget = {"delta": 2 * at + 1, EPSILON: 2 * at}
    other = "Augmentation multiplicity Batch-size"
    return (
        DE22
        | (LAST if last else {})
        | found
        | {field: row("De22", 23, FRACTION, i) for field, i in budget.items()}
        | {AUGMENTED: row("De22", 23, other, 2 * at)}
        | {BATCH: row("De22", 23, other, 2 * at + 1)}
    )


FIELDS = {
    "de22": DE22
    | de22(
        21,
        {
            "$arepsilon$ δ": (EPSILON, "delta"),
            "Batch-size": (BATCH,),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATE,),
            "Noise multiplier σ": (NOISE,),
            "Number Updates": (STEPS,),
        },
    ),
    "de22-22": DE22
    | de22(
        22,
        {
            FRACTION: (EPSILON, "delta"),
            "Batch-size": (BATCH,),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATES,),
            "Noise multiplier σ": (NOISE,),
            "Number Updates": (STEPS,),
        },
    ),
    "de22-13": CIFAR
    | de22(
        13,
        {
            "$arepsilon$ δ": (EPSILON, "delta"),
            "Augmult Batch-size": (AUGMENTED, BATCH),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATES,),
            "Noise multiplier σ Number Updates": (NOISE, STEPS),
        },
    ),
    "de22-14": CIFAR
    | de22(
        14,
        {
            "ε": (EPSILON,),
            "δ": ("delta",),
            "Augmult": (AUGMENTED,),
            "Batch-size": (BATCH,),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATES,),
            "Noise multiplier σ": (NOISE,),
            "Number Updates": (STEPS,),
        },
    ),
    "de22-15": DE22
    | de22(
        15,
        {
            "E": (EPSILON, "delta"),
            "Augmentation multiplicity": (AUGMENTED,),
            "Batch-size": (BATCH,),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATE,),
            "Noise multiplier σ": (NOISE,),
            "Number of updates": (SGD + "steps",),
        },
    ),
    "de22-16": CIFAR
    | de22(
        16,
        {
            FRACTION: (EPSILON, "delta"),
            "Augmentation multiplicity Batch-size": (AUGMENTED, BATCH),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATE,),
            "Noise multiplier σ": (NOISE,),
            "Number of updates": (STEPS,),
        },
    ),
    "de22-17": CIFAR | LAST | de22(17, TABLE_17),
    "de22-18": CIFAR | de22(18, TABLE_17),
    "de22-19": CIFAR | LAST | de22(19, TABLE_17),
    "de22-20": CIFAR
    | de22(
        20,
        {
            FRACTION: (EPSILON, "delta"),
            "Augmentation multiplicity": (AUGMENTED,),
            "Batch-size": (COLUMN + "batch_size",),
            "Clipping-norm": (CLIP,),
            "Learning-rate": (RATES,),
            "Noise multiplier σ Number of updates": (NOISE, STEPS),
        },
    ),
    "de22-23": places(0),
    "de22-23-last": places(1, last=True),
    "de22-23-no-noise": {
        "accountant": DE22["accountant"],
        COLUMN + "augmentation_multiplicity": row(
            "De22", 23, "Augmentation multiplicity Batch-size", 4, 6
        ),
        COLUMN + "batch_size": row(
            "De22", 23, "Augmentation multiplicity Batch-size", 5, 7
        ),
        # the text has lost the first one
        COLUMN + "clip_norm": row("De22", 23, BELOW_23, 11),
        RATES: row("De22", 23, BELOW_23, 8, 12),
        NOISE: row("De22", 23, BELOW_23, 9, 13),
        STEPS: row("De22", 23, BELOW_23, 10, 14),
    },
}

# --- TAN23 ----------------------------------------------------------------------------

TAN = {
    "accountant": said(
        "TAN23",
        "In this work, we use the accountant due to (Balle et al., 2020)",
        "rdp",
    ),
    "delta": said("TAN23", "(8, 8.10^{-7})", 8e-7),
    SGD + "loss": None,
    SGD + "noise_multiplier": row("TAN23", 2, "IMAGENET:", 0),
    BATCH: row("TAN23", 2, "IMAGENET:", 1),
    SGD + "steps": row("TAN23", 2, "IMAGENET:", 2),
    CLIP: said("TAN23", "We use C = 1 for the clipping factor"),
    RATE: row("TAN23", 2, "1024", 0),
    MOMENTUM: row("TAN23", 2, "1024", 1),
    SGD + "dampening": row("TAN23", 2, "1024", 2),
    DECAY: row("TAN23", 2, "1024", 4),
    AUGMENTED: row("TAN23", 2, "1024", 6),
    SGD + "augment": said("TAN23", "(OURS, 8)", "ours"),
    SGD + "average": said("TAN23", "We use exponential moving average (EMA)", "ema"),
}
SEARCH = {
    "search.learning_rate": said(
        "TAN23", r"learning rates $lr \in [1, 2, 4, 8, 12, 16]$"
    ),
    "search.momentum": said("TAN23", r"parameters $\mu \in [0, 0.1, 0.5, 0.9, 1]$"),
    "search.dampening": said("TAN23", r"factors $d \in [0, 0.1, 0.5, 0.9, 1]$"),
    "search.ema_decay": said("TAN23", "parameter in [0.9, 0.99, 0.9999, 0.99999]"),
    "search.augmentation_multiplicity": said(
        "TAN23", "multiplicity of augmentations (1, 2, 4, 8, 16)"
    ),
    "search.augment": said(
        "TAN23", 'referred to as "RRC", "Ours" and "SimCLR"', "rrc", "ours", "simclr"
    ),
}
BARE = {
    AUGMENTED: said("TAN23", "for all runs and no data augmentation", 0),
    SGD + "augment": said("TAN23", "for all runs and no data augmentation", "none"),
}
WRN = "a 16-4-WideResnet on CIFAR-10, constant learning rate at 4, and"
FIELDS |= {
    "tan23": TAN | SEARCH,
    "tan23-3": TAN
    | SEARCH
    | BARE
    | {
        SGD + "noise_multiplier": said(
            "TAN23", r"We use $\sigma = 2.5/64$ for all runs", 2.5 / 64
        ),
        STEPS: column("TAN23", 3, ("9K", "18K", "72K", "288K"), 0),
        COLUMN + "batch_size": column("TAN23", 3, ("9K", "18K", "72K", "288K"), 1),
        RATES: column("TAN23", 3, ("9K", "18K", "72K", "288K"), 2),
    },
    "tan23-4": TAN
    | SEARCH
    | {
        STEPS: column("TAN23", 4, ("18", "72K"), 0),
        COLUMN + "batch_size": column("TAN23", 4, ("18", "72K"), 1),
        EPSILON: column("TAN23", 4, ("18", "72K"), 2),
        RATES: column("TAN23", 4, ("18", "72K"), 3),
    },
    "tan23-5": TAN
    | SEARCH
    | {
        "delta": said("TAN23", r"We always fix $\delta = 1/N$", 1 / 50_000),
        SGD + "noise_multiplier": row("TAN23", 5, "CIFAR-10:", 0),
        BATCH: row("TAN23", 5, "CIFAR-10:", 1),
        SGD + "steps": row("TAN23", 5, "CIFAR-10:", 2),
        RATE: lambda: said("TAN23", WRN)()[-1:],
        SGD + "norm": said(
            "TAN23", "with post-activation normalization, and no augmentation", "after"
        ),
        AUGMENTED: said("TAN23", "normalization, and no augmentation", 0),
        SGD + "augment": said("TAN23", "normalization, and no augmentation", "none"),
        SGD + "average": None,  # tuned on ImageNet alone
    },
}

# --- FC23: appendix D -----------------------------------------------------------------

FC23_METHODS = {"dp-adam": 6, "dp-ls": 7, "dp-newton": 8, "dp-fc": 9}
FC23_STEPS = {
    "dp-fc": said("FC23", "DP-FC (10 epochs)"),
    "dp-newton": column("FC23", 3, ("10 91.6",), 0),
    "dp-adam": column("FC23", 3, ("100 87.5",), 0),
}


def fc23(label, delta):
    """The fields of the rows of Tables 6-9 that begin with `label`."""
    found = {
        "accountant": said("FC23", "we use zCDP (zero - Concentrated", "zcdp"),
        "delta": said("FC23", f"for training with DP, we fixed δ to be {delta}"),
        "dp-fc.loss": said("FC23", "to -10.0 and train with sigmoid", "sigmoid"),
        "dp-adam.loss": said("FC23", "train with sigmoid cross-entropy", "sigmoid"),
        "dp-fc.initial_bias": said("FC23", "set initial bias to -10.0"),
        "dp-adam.initial_bias": said("FC23", "bias to -10.0 and train with"),
        "dp-fc.gram_intercept": said("FC23", "Compute the feature covariance:", False),
        "dp-ls.class_grams": said("FC23", "noised statistics (Line 6)", True),
        "dp-ls.shrink": said("FC23", "noised statistics (Line 6)", False),
        "dp-fc.equal_noise": said("FC23", "Algorithm 4 satisfies (T+1) 2σ2", True),
        "dp-ls.equal_noise": said("FC23", "Algorithm 3 satisfies 3 2σ2 -zCDP", True),
        "dp-newton.equal_noise": said("FC23", "Algorithm 2 satisfies T σ2", True),
    }
    found |= {f"{method}.steps": read for method, read in FC23_STEPS.items()}
    for method, table in FC23_METHODS.items():
        clips = ["clip_norm", "feature_clip"]
        clips = clips[:1] if method == "dp-adam" else clips[method != "dp-fc" :]
        for clip in clips:
            found[f"{method}.{clip}"] = row("FC23", table, label, -1)
        first = "alpha" if method == "dp-ls" else "learning_rate"
        ridges = {"dp-fc": "ridge", "dp-adam": "weight_decay"}
        second = ridges.get(method, "summed_ridge")
        search = f"search.{method}."
        found[search + first] = row("FC23", table, label, slice(-5, -3))
        found[search + second] = row("FC23", table, label, slice(-3, -1))
        trials = 300 if method == "dp-newton" else 200
        found[search + "trials"] = said("FC23", f"used a total of {trials} trials")
    return found


FIELDS |= {
    "fc23": fc23("ViT-B/16 ImageNet-1k CIFAR-10 ", "1e-5"),
    "fc23-imagenet": fc23("ViT-G/14 JFT-3B ImageNet-1k", "8e-7"),
    "fc23-imagenet-vit-b": fc23("ViT-B/16 ImageNet-21k ImageNet-1k", "8e-7"),
}

# --- TB21: appendix C -----------------------------------------------------------------

TB21 = {
    "accountant": said("TB21", "Lemma B.4 (From RDP to (ε, δ)-DP", "rdp-classic"),
    "delta": row("TB21", 12, "DP guarantee (ε, δ)", SECOND),
    SGD + "loss": said("TB21", "a standard logistic regression classifier", "softmax"),
    MOMENTUM: row("TB21", 12, "Momentum"),
    CLIP: row("TB21", 12, "Gradient clipping norm C"),
}
for i, name in enumerate(("mnist", "fashion-mnist", "cifar10")):
    each = {"batch_size": "Batch size B", "epochs": "Epochs T"}
    each |= {"groups": "Group Norm. groups G"}
    TB21 |= {
        f"search.{name}.{field}": row("TB21", 12, label, slice(3 * i, 3 * i + 3))
        for field, label in each.items()
    }
    norm = slice(4 * i + 2, 4 * i + 4)
    TB21 |= {
        f"search.{name}.base_learning_rate": row(
            "TB21", 12, "Learning rate η", slice(5 * i, 5 * i + 4)
        ),
        f"search.{name}.normalization.noise_multiplier": row(
            "TB21", 12, "Data Norm. (C1, C2, σnorm)", norm
        ),
    }
CLIPS = {
    "mean_clip": ("TB21", 12, "Data Norm. (C1, C2, σnorm)", 0),
    "square_clip": ("TB21", 12, "Data Norm. (C1, C2, σnorm)", 1),
}
TB21 |= {
    f"search.fashion-mnist.normalization.{field}": row(*where[:3], 4 + where[3])
    for field, where in CLIPS.items()
}
TABLE_13 = {
    "batch_size": "Batch size B",
    "base_learning_rate": "Base LR η",
    "epochs": "Epochs T",
}


def linear(at, norm):
    """TB21's best linear head on a data set, the `at`-th; norm: of its data norms."""
    found = {
        SGD + field: row("TB21", 13, label, 3 * at) for field, label in TABLE_13.items()
    }
    if norm is None:
        return TB21 | found
    prefix = SGD + "normalization."
    sd = row("TB21", 13, "Data Norm. σnorm", norm)
    maps = ("K = 243 for RGB images", "K = 81 for grayscale images")[norm == 0]
    found |= {
        prefix + field: row(*where[:3], 4 * at + where[3])
        for field, where in CLIPS.items()
    }
    found |= {prefix + "n_channels": said("TB21", maps)}
    return TB21 | found | {prefix + "noise_multiplier": sd}


def networks(at):
    """TB21's best networks, the `at`-th of each data set's three models."""
    return TB21 | {
        COLUMN + field: row("TB21", 13, label, slice(at, None, 3))
        for field, label in TABLE_13.items()
    }


def transfer(at, rate):
    """TB21 Table 17; at, rate: places of the best among a row's numbers."""
    searched = {
        "search.batch_size": row("TB21", 17, "Batch size B", slice(0, 3)),
        "search.base_learning_rate": row("TB21", 17, "Learning rate η", slice(0, 4)),
        "search.epochs": row("TB21", 17, "Epochs T", slice(0, 3)),
    }
    tuned = {key: read for key, read in TB21.items() if not key.startswith("search")}
    return (
        tuned
        | searched
        | {
            "delta": row("TB21", 17, "DP guarantee (ε, δ)", 1),
            CLIP: row("TB21", 17, "Gradient norm C"),
            MOMENTUM: row("TB21", 17, "Momentum"),
            BATCH: row("TB21", 17, "Batch size B", at),
            SGD + "epochs": row("TB21", 17, "Epochs T", at),
            SGD + "base_learning_rate": row("TB21", 17, "Learning rate η", rate),
        }
    )


SETS = ("MNIST", "Fashion-MNIST", "CIFAR-10")
FIELDS |= {
    "tb21": TB21,
    "tb21-mnist": linear(0, 0),
    "tb21-fashion-mnist": linear(1, None),
    "tb21-cifar10": linear(2, 2),
    "tb21-sn-cnn": networks(1)
    | {
        COLUMN + "groups": row("TB21", 13, "Groups G", 1),
        COLUMN + "data_norm": row("TB21", 13, "Data Norm. σnorm", 1, 3),
    },
    "tb21-cnn": networks(2),
    "tb21-10": {
        "accountant": TB21["accountant"],
        COLUMN + "clip_norm": row("TB21", 10, "Gradient Clipping norm C"),
        COLUMN + "momentum": row("TB21", 10, "Momentum"),
        COLUMN + "epochs": row("TB21", 10, "EpoChs T"),
        COLUMN + "batch_size": row("TB21", 10, "BatCh size B"),
        RATES: row("TB21", 10, "Learning rate η"),
        COLUMN + "groups": row("TB21", 10, "Best ChoiCe of groups G"),
    },
    "tb21-14": {
        "accountant": TB21["accountant"],
        COLUMN + "batch_size": both(*(row("TB21", 14, n + "\t", 0) for n in SETS)),
        COLUMN + "clip_norm": both(*(row("TB21", 14, n + "\t", 1) for n in SETS)),
        COLUMN + "epochs": both(*(row("TB21", 14, n + "\t", 4) for n in SETS)),
        COLUMN + "learning_rates": both(
            said("TB21", "Low LR (η = 0.5) High LR (η = 8.0)"),  # Figure 11
            row("TB21", 14, "Fashion-MNIST\t", 2, 3),
            said("TB21", "Low LR (η = 0.25) High LR (η = 4.0)"),  # Figure 3
        ),
        COLUMN + "groups": row("TB21", 14, "Fashion-MNIST\t", 5),
        COLUMN + "data_norm": both(
            row("TB21", 14, "MNIST\t", 5), row("TB21", 14, "CIFAR-10\t", 5)
        ),
    },
    "tb21-resnext": transfer(3, 5),
    "tb21-simclr": transfer(4, 7),
}


def leaves(value, path=()):
    """(name, list of what stands there) of every field of nested tables."""
    if not isinstance(value, dict):
        yield ".".join(path), value if isinstance(value, list) else [value]
        return
    for key, inner in value.items():
        yield from leaves(inner, (*path, key))


def flat(value):
    """The numbers and truths of nested lists; texts only where there is nothing
    else.
    """
    parts = [v for one in value for v in (one if isinstance(one, list) else [one])]
    numbers = [v for v in parts if not isinstance(v, str)]
    return numbers or parts


def test_every_preset_is_looked_up():
    assert set(FIELDS) == set(presets.names())


@pytest.mark.parametrize("name", presets.names())
def test_every_field_is_what_the_papers_text_prints(name):
    """In the text's order; one value may stand for a row of equal ones."""
    known = FIELDS[name]
    for field, value in leaves(presets.load(name)):
        last = field.rpartition(".")[2]
        if field in ABOUT or last in UNPRINTED or field.startswith("network."):
            continue
        if last in ("dataset", "fine_tuning"):  # the heads of columns
            continue
        assert field in known, f"{name} {field}: where does it stand?"
        if known[field] is None:
            continue
        printed = known[field]()
        ours = flat(value)
        if last == "layers":  # a pattern of names, which no paper has
            assert printed == [len(ours)]
            continue
        if len(ours) == 1:
            printed = sorted(set(printed))
        same = [abs(v) if isinstance(v, float | int) else v for v in ours]
        assert same == printed, f"{name} {field} = {value}, the text has {printed}"


NETWORKS = {
    "wrn-16-4": ("De22 13", "TAN23 5"),
    "wrn-40-4": ("De22 14", "De22 20"),
    "wrn-28-10": ("De22 16", "De22 17", "De22 18", "De22 19"),
    "nf_resnet50": ("De22 15", "De22 23", "TAN23 2", "TAN23 3", "TAN23 4"),
}
CAPTIONS = {
    "De22 13": "CIFAR-10 with a WRN-16-4 (Table 3",
    "De22 14": "CIFAR-10 with a WRN-40-4 (Table 3)",
    "De22 15": "ImageNet with an NF-ResNet-50 (Section 3.3)",
    "De22 16": "CIFAR-10, fine-tuning all layers of WRN-28-10",
    "De22 17": "CIFAR-10, fine-tuning the last layer of WRN-28-10",
    "De22 18": "CIFAR-100, fine-tuning all layers of WRN-28-10",
    "De22 19": "CIFAR-100, fine-tuning the last layer of WRN-28-10",
    "De22 20": "fine-tuning all layers of WRN-40-4",
    "De22 23": "We use the NF-ResNet-50 model",
    "TAN23 2": "De et al. (2022) (blue line in Figure 1: NFResNet-50",
    "TAN23 3": "De et al. (2022) (blue line in Figure 1: NFResNet-50",
    "TAN23 4": "We use a NF-ResNet-50 with",
    "TAN23 5": "we train a 16-4-WideResnet on CIFAR-10",
}


@pytest.mark.parametrize("name", presets.names())
def test_a_presets_network_is_the_one_that_its_table_is_of(name):
    preset = presets.load(name)
    network = preset.get("network")
    if not isinstance(network, str):
        return
    paper, table = re.match(r"(\w+) \w+ (\d+)", preset["source"]).groups()
    assert f"{paper} {table}" in NETWORKS[network]
    said(paper, CAPTIONS[f"{paper} {table}"])()


def test_what_a_preset_leaves_open_is_in_its_columns_or_its_search():
    for name in presets.names():
        preset = presets.load(name)
        known = {
            part.removeprefix("summed_")
            for key in ("columns", "search")
            for field, _ in leaves(preset.get(key, {}))
            for part in field.split(".")
        }
        for method, table in preset.items():
            if isinstance(table, dict):
                assert set(table.get("left_to_the_user", [])) <= known, (name, method)


def test_a_column_is_found_by_its_values():
    assert presets.column("de22", epsilon=1.0) == {
        "epsilon": 1.0,
        "noise_multiplier": 21.2,
        "steps": 500,
    }
    assert presets.column("tb21-10", dataset="fashion-mnist")["groups"] == 81
    for where in ({"epsilon": 3.0}, {}):
        with pytest.raises(ValueError, match="needs exactly one"):
            presets.column("de22", **where)


def test_a_delta_is_the_users_then_the_presets_then_ours():
    assert presets.delta_of("de22", 1e-6) == 1e-6
    assert presets.delta_of("de22", None) == presets.load("de22")["delta"]
    assert presets.delta_of("tb21-cnn/mnist", None) == presets.load("tb21")["delta"]
    assert presets.delta_of(None, None) == presets.delta_of("tb21-10", None) == 1e-5
