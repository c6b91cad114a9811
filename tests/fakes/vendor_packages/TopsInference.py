"""The fake of the vendor's package under its own name, for child processes."""

from tests.fakes.fake_tops_inference import *
from tests.fakes.fake_tops_inference import __version__
