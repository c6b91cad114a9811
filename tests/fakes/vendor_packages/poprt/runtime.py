"""See `poprt`."""

from tests.fakes.fake_ipu_runtime import *
