"""Declare the options that several commands share.

Import nothing heavy here: `dphead COMMAND --help` loads this file.
"""

from pathlib import Path

import click

from dphead.cli import values
from dphead.cli.choices import LEDGER, METHODS, PATH, RELATIONS, TUNING, NamedPath
from dphead.cli.command import CONFIG

# --- what a run guarantees ------------------------------------------------------------

_EPSILON = click.option(
    "-e",
    "--epsilon",
    type=values.Number(infinite=True),
    default=1.0,
    show_default=True,
    help="Epsilon that this fit spends. inf: no noise and no privacy.",
)
DELTA = click.option(
    "--delta",
    type=values.NUMBER,
    help=(
        "Failure probability, below 1/n for n images or groups (default: the preset's, "
        "else 1e-5)."
    ),
)
RELATION = click.option(
    "--relation",
    type=RELATIONS,
    default="zero_out",
    show_default=True,
    help=(
        "Neighboring relation: one image is zeroed out, added or removed, or replaced."
    ),
)
_NOMINAL_N = click.option(
    "--nominal-n",
    type=values.WHOLE,
    help=(
        "Public number near the number of images. Only --relation add_remove needs it: "
        "there, the number of images is private."
    ),
)
GROUP_CAP = click.option(
    "--group-cap",
    type=values.COUNT,
    help="Protect groups (patients), and use at most this many images of each group.",
)
GROUP_MEAN = click.option(
    "--group-mean",
    is_flag=True,
    help="Use the means of a group's images in each class, for at most --group-cap "
    "classes, instead of its first images.",
)
PROTECT = click.option(
    "--protect",
    type=click.Choice(["image"]),
    help="Protect single images although the source has groups (people).",
)
LEDGER_OPTION = click.option(
    "--ledger",
    type=LEDGER,
    help="Ledger to charge: a file, or a team's postgresql:// URL (default: "
    "DPHEAD_LEDGER, else the data set's own file in DPHEAD_HOME).",
)
_TUNED = click.option(
    "--tuning",
    type=TUNING,
    help="How the settings were chosen, for the report.",
)
_ALLOW_LARGE_DELTA = click.option(
    "--allow-large-delta", is_flag=True, help="Accept a delta of 1/n or more."
)
_NOT_PRIVATE = click.option(
    "--i-know-this-is-not-private",
    "not_private",
    is_flag=True,
    help="Confirm --epsilon inf. The ledger's total is infinite from then on.",
)
SEED = click.option(
    "--seed",
    type=values.WHOLE,
    help="Seed of the noise, for tests. The result is NOT private.",
)

# --- a run's files, and what it prints ------------------------------------------------

_RUN_FOLDER = click.option(
    "-o", "--output", "out", type=PATH, required=True, help="Run folder to create."
)
_SPLIT = click.option("--split", help="Split to train on, if the source has several.")
TEST = click.option(
    "--test", type=PATH, help="Source to test on, of the training source's kind."
)
_TEST_SPLIT = click.option(
    "--test-split", help="Split to test on, of --test or of the training source."
)
_TEST_IS = click.option(
    "--test-is",
    type=click.Choice(["private", "public"]),
    default="private",
    show_default=True,
    help="public: the test images need no protection, and the report includes the "
    "accuracy on them.",
)
_VERBOSE = click.option(
    "-v", "--verbose", is_flag=True, help="Print all releases and all figures."
)
_DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="Print the planned releases and the budget, and charge nothing.",
)

PUBLIC_ROWS = click.option(
    "--public-rows",
    is_flag=True,
    help="Declare the images public: they need no protection.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

# --- what fit and finetune share ------------------------------------------------------

GUARANTEE = (
    *(
        _EPSILON,
        DELTA,
        RELATION,
        _NOMINAL_N,
        PROTECT,
        LEDGER_OPTION,
        _TUNED,
        _ALLOW_LARGE_DELTA,
    ),
    *(_NOT_PRIVATE, SEED),
)
RUN_FILES = (_RUN_FOLDER, _SPLIT, TEST, _TEST_SPLIT, _TEST_IS, CONFIG)
PRINTED = (_VERBOSE, _DRY_RUN)

# --- methods of heads -----------------------------------------------------------------

METHOD = click.option(
    "--method",
    type=METHODS,
    default="auto",
    show_default=True,
    help="Training method. auto has no hyperparameters to set. With a --preset of one "
    "method, auto means that method.",
)
PRESET = click.option(
    "--preset",
    help="A paper's settings: fc23, tb21, tb21-mnist, tb21-cifar10, de22, ...",
)
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=values.settings,
    metavar="NAME=VALUE",
    help="A setting of --method, such as batch_size=4096.",
)

# --- networks -------------------------------------------------------------------------

NORM = click.option(
    "--norm",
    type=click.Choice(["before", "after"]),
    help=(
        "Place of the norms of a Wide-ResNet relative to activations (default: before)."
    ),
)

# --- images, and the features file that is made of them -------------------------------

LAYOUT = click.option(
    "--layout",
    metavar="PARTS",
    help=(
        "Folder levels, outermost first: class, split/class, any/class or "
        "any/split/class. webdataset: tars of samples. Default: split/class with "
        "--split, else class."
    ),
)
COLUMNS = click.option(
    "--columns",
    multiple=True,
    callback=values.columns,
    metavar="ROLE=NAME,...",
    help=(
        "Columns of a table: path or image, label, group and split. WebDataset: fields "
        "of the .json. An .npy of embeddings: paths of .npy files. Default: the "
        "columns with these names."
    ),
)
ENCODING = click.option(
    "--encoding",
    type=click.Choice(["utf-8", "windows-1252", "latin-1"]),
    default="utf-8",
    show_default=True,
    help="Encoding of a CSV or TSV. Excel often writes windows-1252.",
)
TEST_FRACTION = click.option(
    "--test-fraction",
    type=values.Number(0, 0.9),
    default=0.0,
    help=(
        "Set this fraction of the images (with groups: of the groups) apart as the "
        "split test, such as 0.2. The other images are the split train."
    ),
)
BY_GROUP = click.option(
    "--by-group",
    is_flag=True,
    help="Refuse --test-fraction if the source has no groups.",
)
BITS = click.option(
    "--bits",
    type=values.Whole(1, 32),
    help=(
        "Public number of bits that gray integer pixels use: 12 means 0 to 4095. "
        "8-bit images always use 0 to 255."
    ),
)
INTENSITY = click.option(
    "--intensity",
    callback=values.intensity,
    metavar="LOW,HIGH",
    help=(
        "Public gray values that become black and white. Signed, 32-bit and "
        "floating-point pixels need them. 8-bit images use 0 to 255."
    ),
)
CLASSES = click.option(
    "--classes",
    metavar="A,B,C|N|@FILE",
    help="Public class names, a number of classes (labels are then indices), or a file "
    "with one name per line.",
)
FOLDER_NAMES_ARE_PUBLIC = click.option(
    "--folder-names-are-public",
    is_flag=True,
    help="Declare the folder (or label) names public and use them as classes.",
)
UNLABELED = click.option(
    "--allow-unlabeled",
    is_flag=True,
    help="Keep images with an undeclared label, without a class.",
)
IGNORE_LABELS = click.option(
    "--ignore-labels", is_flag=True, help="Store no labels (prediction only)."
)
DATASET_ID = click.option(
    "--dataset-id",
    metavar="HEX",
    help="Public id of the data set, as another features file prints it.",
)
SAME_DATA_AS = click.option(
    "--same-data-as",
    type=PATH,
    help="Features file of the same images. Both files share one ledger.",
)
NEW_DATA_SET = click.option(
    "--new-data-set",
    is_flag=True,
    help="Start a new data set although another one has some of these images.",
)
FEATURES_FILE = click.option(
    "-o",
    "--output",
    required=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Features file to write (.h5).",
)
BLOCK_ROWS = click.option(
    "--block-rows",
    default=1024,
    show_default=True,
    type=values.COUNT,
    help="Number of rows between resume points.",
)
