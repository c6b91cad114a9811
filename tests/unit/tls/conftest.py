"""One certificate authority for all tests of this room."""

import pytest

from tests.fakes.certificates import OPENSSL, Authority, Pair


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if OPENSSL is None:
        pytest.skip("needs the openssl command to make certificates")
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="session")
def server_pair(authority: Authority) -> Pair:
    return authority.sign("server")


@pytest.fixture(scope="session")
def other_pair(authority: Authority) -> Pair:
    return authority.sign("other", days=(-1, 90))
