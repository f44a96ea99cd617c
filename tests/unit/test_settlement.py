"""The ends of a delivery."""

from __future__ import annotations

import pytest

from redrive.core.settlement import Reason


@pytest.mark.parametrize(("code", "text"), [("", "text"), ("CODE", ""), ("CODE", " \n")])
def test_a_reason_without_code_or_text_cannot_be_made(code: str, text: str) -> None:
    with pytest.raises(ValueError, match="needs a code and a text"):
        Reason(code=code, text=text)
