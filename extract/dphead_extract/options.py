"""Declare the options of images and data sets that several commands share."""

from functools import partial

from dphead_extract.declared import Option, Range
from dphead_extract.numerals import LARGEST, separated

NATURAL = Range("a whole number of at least 1", lambda v: v >= 1)

# sections of the commands' help
image_option = partial(Option, section="Images and labels")
data_set_option = partial(Option, section="Data set")

LAYOUT = image_option(
    "Meaning of each folder level, outermost first: class, split/class, any/class or "
    "any/split/class. The name of an `any` folder is ignored. Default: split/class "
    "with --split, and class without.",
    metavar="PARTS",
)
BITS = image_option(
    "Bit depth of gray integer pixels, declared public. For example, 12 means values "
    "from 0 to 4095, or from -2048 to 2047 if they are signed. Unsigned 8-bit images "
    "always have the range 0 to 255.",
    Range("from 1 to 32", lambda v: 1 <= v <= 32),
)
INTENSITY = image_option(
    "Public gray values that become black and white. Signed integers, and integers of "
    "more than 16 bits, need this option or --bits. Floating-point images need it, "
    "except arrays of numbers from 0 to 1. Unsigned 8-bit images always use 0 and 255.",
    read=separated(float, -LARGEST, "LOW,HIGH", 2),
    metavar="LOW,HIGH",
)
OUTPUT = data_set_option("Features file to write (.h5).", flags=("-o", "--output"))
BLOCK_ROWS = Option(
    "Number of rows between resume points.", NATURAL, section="Speed and processes"
)
DTYPE = Option("Type of the numbers in the features file.", section="Features")
DATASET_ID = data_set_option(
    "Public id of the data set. `dphead extract` prints the id of each file.",
    metavar="HEX",
)
SAME_DATA_AS = data_set_option(
    "Features file of the same images or rows. The command uses the data set and the "
    "ledger of this file.",
    existing="a features file",
    shared=False,
)
NEW_DATA_SET = data_set_option(
    "Start a new data set, even if another data set has some of these images."
)
PEOPLE = data_set_option(
    "Public name of the id system of the groups, such as clinic-records. The data sets "
    "of one id system share one ledger, except those with --new-people.",
    flags=("--people",),
    metavar="NAME",
    resumed=True,
)
NEW_PEOPLE = data_set_option(
    "Declare that nobody is in another data set of the id system (--people). The data "
    "set then has a ledger of its own. dphead checks the declaration against the data "
    "sets that it knows.",
    flags=("--new-people",),
    resumed=True,
)
