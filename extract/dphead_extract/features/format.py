"""Define features.h5, the contract between extraction (PyTorch) and training (JAX).

The modules of this format must import only numpy and h5py, and no other packages.

One row is one image, and its position is its identity. All datasets hold private
values. ``config`` and ``salt`` are private too. ``config`` has a digest of the source,
which could confirm a guess about it. ``salt`` is the key of the row digests.

| dataset         | type, shape              | meaning                                 |
|-----------------|--------------------------|-----------------------------------------|
| `/features`     | float16 or float32 (n,d) | pooled features; zero where not `valid` |
| `/labels`       | int32 (n,)               | index into the class names, or -1       |
| `/valid`        | bool (n,)                | false: the row is masked                |
| `/split`        | uint8 (n,)               | index into the split names              |
| `/group`        | int64 (n,), optional     | `group_ids`; -1: a row without a group  |
| `/row_digest`   | uint8 (n,16)             | salted blake2b of the image             |
| `/block_digest` | uint8 (blocks,32)        | sha256 of a block; zero: not written    |

An unreadable image keeps its row, so that n stays public. A label of -1 means that the
row has no label, or one outside the classes. The split ``none`` means that a row has no
split. A row's digest covers the decoded image and, if they differ, its canonical pixels
(`Source.forms`). A block's digest covers all columns above it in the table.

The file begins with a seal of 2,048 bytes (`features.seal`), which HDF5's tools skip.
The seal records whether the file is complete, and a digest of everything outside the
columns. Each column is contiguous.

Attributes: ``schema_version``, ``dataset_id``, ``salt`` and ``config``. ``config`` is
JSON. It holds the fields of `Header`: sizes, ``block_rows``, ``class_names``,
``classes_declared`` ("classes-flag", "folder-names-flag" or ""), ``split_names``,
``backbone``, ``backbone_kwargs``, ``weights_sha256``, ``transform``, ``normalization``
and ``library_versions``. It also holds every option that can change a value in the
file. ``limit`` is the value of ``--limit``, or null. Files of earlier versions do not
have this key. ``holdout`` has the expected ``fraction`` of test images that hashes of
names set apart, ``by`` ("group" or "image"), and ``positions`` (whether an image
without a group is named by its position). ``people`` has the public name of the groups'
id ``system``, and ``new`` (whether ``--new-people`` was declared).

A file under construction is PATH.part. It is renamed when its last block is on the
disk.
"""

from dphead_extract.errors import FormatError
from dphead_extract.features.reading import FeaturesFile, open_features
from dphead_extract.features.rows import Header, check_ids, group_ids, row_digest
from dphead_extract.features.verify import check_blocks, verify
from dphead_extract.features.writing import FeaturesWriter, write_features
from dphead_extract.items import declared_dtype, is_missing, read_column

__all__ = [
    "FeaturesFile",
    "FeaturesWriter",
    "FormatError",
    "Header",
    "check_blocks",
    "check_ids",
    "declared_dtype",
    "group_ids",
    "is_missing",
    "open_features",
    "read_column",
    "row_digest",
    "verify",
    "write_features",
]
