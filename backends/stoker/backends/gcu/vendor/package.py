"""The vendor's package of GCU cards."""

from typing import Final

from stoker.backends.devices.vendor_package import VendorPackage

HOW_TO_GET: Final = (
    "TopsInference is part of Enflame's TopsRider software stack, which the vendor gives to owners of a card: install its Python wheel "
    "into the environment of this server"
)
PACKAGE: Final = VendorPackage(["TopsInference"], how_to_get=HOW_TO_GET)
