"""Certificates, as tritonclient sees them: each case states whether the server accepts it."""

import json
import sys
from pathlib import Path

import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed


def over_grpc(host: str, port: int, ca: str, cert: str | None, key: str | None) -> bool:
    """Whether the server responds."""
    client = tritonclient.grpc.InferenceServerClient(
        f"{host}:{port}", ssl=True, root_certificates=ca, private_key=key, certificate_chain=cert
    )
    try:
        return client.is_server_ready(client_timeout=10)
    except tritonclient.grpc.InferenceServerException as error:
        if error.status() != "StatusCode.UNAVAILABLE":
            raise
        return False
    finally:
        client.close()


def over_http(host: str, port: int, ca: str, cert: str | None, key: str | None) -> bool:
    """Whether the server responds."""
    options = {"ca_certs": ca} | ({} if cert is None else {"certfile": cert, "keyfile": key})
    client = tritonclient.http.InferenceServerClient(f"{host}:{port}", ssl=True, ssl_options=options)
    try:
        return client.is_server_ready()
    except (OSError, HTTPConnectionClosed):  # TLS's own errors among them
        return False
    finally:
        client.close()


kind, port, cases = sys.argv[1:]
call = over_grpc if kind == "grpc" else over_http
found = {case["name"]: call(case["host"], int(port), case["ca"], case["cert"], case["key"]) for case in json.loads(Path(cases).read_text())}
print(json.dumps(found))
