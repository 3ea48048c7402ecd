"""What the models of this room need."""

from __future__ import annotations

import pytest

# A model's assertions are told as a test's are.
pytest.register_assert_rewrite("group_world")
