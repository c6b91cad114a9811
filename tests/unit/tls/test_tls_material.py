"""Reading of certificates and keys: refusals with their text, and the resulting context."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stoker.server.flags.network import read_ssl_config
from stoker.server.net.settings import PemFiles, SslConfigFile
from stoker.server.net.tls.material import MAX_FILE_BYTES, TlsError, make_context, pem_certificates, read_material, validity_of
from tests.fakes.certificates import OPENSSL, Authority, Pair


def now() -> datetime:
    return datetime.now(UTC)


def read(pair: Pair, client_ca: Path | None = None):
    return read_material(PemFiles(cert=pair.cert, key=pair.key, client_ca=client_ca), now())


def refusal(pair: Pair, client_ca: Path | None = None) -> str:
    with pytest.raises(TlsError) as caught:
        read(pair, client_ca)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_pair_becomes_a_context_for_tls_1_2_and_later(server_pair):
    material = read(server_pair)
    context = make_context(material, "h2")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    assert "PRIVATE KEY" not in repr(material)


def test_client_authority_requires_client_certificates(server_pair, authority: Authority):
    context = make_context(read(server_pair, authority.cert), "http/1.1")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.num_tickets == 0


def test_validity_agrees_with_openssl(server_pair):
    said = subprocess.run(
        [str(OPENSSL), "x509", "-in", str(server_pair.cert), "-noout", "-startdate", "-enddate"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    validity = validity_of(pem_certificates(server_pair.cert.read_text())[0])
    for line, moment in zip(said, validity, strict=True):
        assert ssl.cert_time_to_seconds(line.partition("=")[2]) == moment.timestamp()


def test_validity_after_2050_is_read(authority: Authority):
    # From 2050 on, X.509 writes times in another form.
    pair = authority.sign("far", days=(-1, 365 * 40))
    assert validity_of(pem_certificates(pair.cert.read_text())[0]).not_after.year == (now() + timedelta(days=365 * 40)).year


def test_missing_file_is_named(server_pair, tmp_path):
    assert refusal(Pair(tmp_path / "no.pem", server_pair.key)) == f"{tmp_path / 'no.pem'}: No such file or directory"
    assert refusal(Pair(server_pair.cert, tmp_path)) == f"{tmp_path}: Is a directory"


def test_files_with_the_wrong_contents_are_named(server_pair, tmp_path):
    empty, binary, large = tmp_path / "empty", tmp_path / "binary", tmp_path / "large"
    empty.touch()
    binary.write_bytes(b"\x30\x82\xff")
    large.write_bytes(b"-" * (MAX_FILE_BYTES + 1))
    assert f"{empty}: no certificate in it" in refusal(Pair(empty, server_pair.key))
    assert f"{empty}: no key in it" in refusal(Pair(server_pair.cert, empty))
    assert f"{empty}: no certificate in it" in refusal(server_pair, empty)
    assert f"{binary}: not text" in refusal(Pair(binary, server_pair.key))
    assert f"{large}: larger than" in refusal(Pair(large, server_pair.key))
    assert "no key in it" in refusal(Pair(server_pair.cert, server_pair.cert))


def test_text_between_authorities_is_ignored(server_pair, authority: Authority, tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Főtanúsítvány\n{authority.cert.read_text()}\n# and again\r\n{authority.cert.read_text()}")
    context = make_context(read(server_pair, bundle), "h2")
    assert len(context.get_ca_certs()) == 1
    bundle.write_text(authority.cert.read_text().replace("MII", "Mőő", 1))
    assert "the certificates cannot be read" in refusal(server_pair, bundle)


@pytest.mark.parametrize("mark", ["ő", "\0", "A" * 4000, "-----BEGIN CERTIFICATE-----"])
def test_invalid_certificates_are_refused_in_one_line(mark, server_pair, tmp_path):
    strange = tmp_path / "strange.pem"
    text = server_pair.cert.read_text()
    strange.write_text(text[:100] + mark + text[100:])
    assert str(strange) in refusal(Pair(strange, server_pair.key))


def test_key_of_another_certificate_is_refused(server_pair, other_pair):
    text = refusal(Pair(server_pair.cert, other_pair.key))
    assert text == f"{other_pair.key}: the key does not belong to the certificate in {server_pair.cert}"


def test_encrypted_key_is_refused_without_a_prompt(server_pair, tmp_path):
    locked = tmp_path / "locked.key"
    subprocess.run(
        [str(OPENSSL), "pkcs8", "-topk8", "-in", str(server_pair.key), "-out", str(locked), "-passout", "pass:x"],
        check=True,
        capture_output=True,
    )
    assert f"{locked}: the key is encrypted" in refusal(Pair(server_pair.cert, locked))


@pytest.mark.parametrize(("days", "fragment"), [((-3, -1), "has expired: it was valid until"), ((1, 2), "is not valid yet: it is from")])
def test_certificate_outside_its_validity_is_refused(days, fragment, authority: Authority):
    pair = authority.sign(f"time{days[0]}", days=days)
    assert fragment in refusal(pair)


def test_damaged_certificates_are_refused(server_pair, tmp_path):
    lines = server_pair.cert.read_text().splitlines(keepends=True)
    damaged = tmp_path / "damaged.pem"
    for cut in range(1, len(lines) - 1):
        damaged.write_text("".join([lines[0], *lines[cut + 1 :]]))
        assert str(damaged) in refusal(Pair(damaged, server_pair.key))


def test_ssl_config_file_contains_the_pem_texts(server_pair, authority: Authority, tmp_path):
    def quoted(path: Path) -> str:
        return '"' + path.read_text().replace("\n", "\\n") + '"'

    file = tmp_path / "ssl.config"
    file.write_text(
        f"server_key: {quoted(server_pair.key)}\nserver_cert: {quoted(server_pair.cert)}\n"
        f"custom_ca: {quoted(authority.cert)}\nclient_verify: true\n"
    )
    material = read_material(SslConfigFile(file, read_ssl_config), now())
    assert material == read(server_pair, authority.cert)
    file.write_text(
        f"server_key: {quoted(server_pair.key)}\nserver_cert: {quoted(server_pair.cert)}\ncustom_ca: {quoted(authority.cert)}\n"
    )
    assert read_material(SslConfigFile(file, read_ssl_config), now()).client_ca is None


def test_invalid_ssl_config_is_named_with_its_line_and_without_its_key(server_pair, tmp_path):
    file = tmp_path / "ssl.config"
    key = server_pair.key.read_text().splitlines()[1]
    for text, fragment in [
        ("server_cert: 'x'\n", "server_key: must be written"),
        ("server_kee: 'x'\n", "server_kee"),
        (f"server_cert: 'x' server_key: '{key}' client_verify: true\n", "custom_ca: must be written with client_verify"),
        (f"server_cert: 'x' server_key: '{key}'\n", "server_cert: no certificate in it"),
    ]:
        file.write_text(text)
        with pytest.raises(TlsError) as caught:
            read_material(SslConfigFile(file, read_ssl_config), now())
        assert str(file) in str(caught.value)
        assert fragment in str(caught.value)
        assert key not in str(caught.value)
