import pytest
import torch

from extract.errors import ExtractError
from extract.rowwise import RowNorm


def test_group_norm_is_torchs():
    x = torch.randn(4, 12, 3, 3) * 5 + 2
    for groups in (1, 3, 12):
        expected = torch.nn.functional.group_norm(x, groups).flatten(1)
        torch.testing.assert_close(RowNorm("group", groups)(x), expected, rtol=1e-5, atol=1e-5)


def test_unit_norm_and_zero_rows():
    x = torch.randn(3, 5)
    x[1] = 0
    out = RowNorm("unit")(x)
    torch.testing.assert_close(out.norm(dim=1), torch.tensor([1.0, 0.0, 1.0]))


def test_none_flattens_channels_first():
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    torch.testing.assert_close(RowNorm()(x), x.flatten(1))


@pytest.mark.parametrize("norm", [RowNorm(), RowNorm("unit"), RowNorm("group", 2)])
def test_a_row_does_not_see_the_others(norm):
    x = torch.randn(6, 4, 2, 2)
    torch.testing.assert_close(norm(x)[2:3], norm(x[2:3]), rtol=1e-6, atol=1e-6)


def test_bad_settings():
    for arguments in (("group", 0), ("unit", 3), ("batch", 0)):
        with pytest.raises(ExtractError, match="normalisation must be"):
            RowNorm(*arguments)
    with pytest.raises(ExtractError, match=r"Use one of \[1, 3, 9, 27, 81\]"):
        RowNorm("group", 16).check_channels(81)
