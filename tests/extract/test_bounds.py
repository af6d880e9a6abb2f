import os

import pytest

from extract import bounds
from extract.bounds import check_unpacked, is_plain
from extract.errors import ExtractError


def test_what_unpacks_to_far_more_is_refused(tmp_path):
    check_unpacked(bounds.PLAIN_BYTES, 1, tmp_path)
    large = bounds.PLAIN_BYTES * 4
    check_unpacked(large, 1 + large // bounds.PACKED_TIMES, tmp_path)
    with pytest.raises(ExtractError, match="must unpack to at most"):
        check_unpacked(large, large // bounds.PACKED_TIMES - 1, tmp_path)


def test_only_a_file_with_an_end_is_plain(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert is_plain(tmp_path / "file")
    assert is_plain(tmp_path / "link")
    for name in ("pipe", "missing", ".", "/dev/zero", "a\0b", "x" * 5000):
        assert not is_plain(tmp_path / name)
