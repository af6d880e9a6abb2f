"""A bounded part of `python -m benchmarks faults flips`: a damaged file is refused, or
makes no difference.
"""

from benchmarks.faults import damage
from benchmarks.faults.damage import Outcome, Reading, verdict


def test_flipped_bits_are_refused_or_make_no_difference():
    found = list(damage.flips(15, seed=1))
    assert len(found) == 15
    assert [problems for problems in found if problems] == []


def test_what_is_broken_is_found():
    """The probe's own eyes: a silent difference, a traceback, another refusal."""
    reading = Reading("f.h5", ("predict", "head", "f.h5"))
    sound = Outcome(0, "a", "{}")
    assert verdict(reading, sound, sound) == ""
    assert verdict(reading, sound, Outcome(2, "Error: no\n", "{}")) == ""
    assert verdict(reading, sound, Outcome(0, "a", "{1}")) == "another result, unsaid"
    assert "exit code 0" in verdict(reading, sound, Outcome(0, "b", "{}"))
    assert "exit code 1" in verdict(reading, sound, Outcome(1, "b", "{}"))
    assert "traceback" in verdict(reading, sound, Outcome(2, "Traceback", "{}"))
    assert "no line" in verdict(reading, sound, Outcome(2, "", "{}"))
    listing = Reading("f.h5", ("verify", "f.h5"))
    assert verdict(listing, sound, Outcome(1, "problems", "{}")) == ""


def test_every_file_of_a_run_is_read():
    """A new file that is written and read again needs a line in READINGS."""
    read = {reading.file.split("/")[-1] for reading in damage.READINGS}
    written = {"head.json", "head.safetensors", "report.json", "ledger.json"}
    written |= {"model.json", "model.safetensors", "checkpoint.npz", "fit.json"}
    assert written <= read
