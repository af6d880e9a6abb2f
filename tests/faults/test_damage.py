"""A bounded part of `python -m benchmarks faults flips`: a damaged file is refused, or
makes no difference.
"""

from benchmarks.faults import damage


def test_flipped_bits_are_refused_or_make_no_difference():
    found = list(damage.flips(8, seed=1))
    assert len(found) == 8
    assert [problems for problems in found if problems] == []


def test_every_file_of_a_run_is_read():
    """A new file that is written and read again needs a line in READINGS."""
    read = {file.split("/")[-1] for file in damage.READINGS}
    written = {"head.json", "head.safetensors", "report.json", "ledger.json"}
    written |= {"model.json", "model.safetensors", "checkpoint.npz", "fit.json"}
    assert written <= read
