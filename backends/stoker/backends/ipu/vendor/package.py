"""The vendor's packages that run PopEF files on IPUs."""

from typing import Final

from stoker.backends.devices.vendor_package import VendorPackage

HOW_TO_GET: Final = (
    "model_runtime is part of Graphcore's Poplar SDK and poprt of its PopRT container image: run this server there, with Stoker installed "
    "beside them"
)
#: `poprt.runtime` is preferred, because its Python interface is documented.
PACKAGE: Final = VendorPackage(["poprt.runtime", "model_runtime"], how_to_get=HOW_TO_GET)
