"""S3 as emulated by moto, in this process, with one bucket."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

REGION = "us-east-1"
BUCKET = "cache"


@dataclass(frozen=True)
class S3:
    """*environment*: what a client needs, in the variables of AWS's own tools."""

    endpoint: str
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Run until the end of the block, then drop all contents."""
    import urllib3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        answer = urllib3.request("PUT", f"{endpoint}/{BUCKET}", headers={"Content-Length": "0"})
        if answer.status != 200:
            raise RuntimeError(f"moto makes no bucket: {answer.status} {answer.data[:500]!r}")
        yield S3(
            endpoint,
            {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_REGION": REGION,
            },
        )
    finally:
        server.stop()


@contextmanager
def policies_of(s3: S3, policies: dict[str, object]) -> Iterator[dict[str, dict[str, str]]]:
    """Yield the environment of each user in *policies*, and enforce the policies within the block."""
    import boto3
    import urllib3

    accounts = boto3.client(
        "iam",
        endpoint_url=s3.endpoint,
        region_name=REGION,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    environments = {}
    for user, policy in policies.items():
        accounts.create_user(UserName=user)
        accounts.put_user_policy(UserName=user, PolicyName="theirs", PolicyDocument=json.dumps(policy))
        key = accounts.create_access_key(UserName=user)["AccessKey"]
        environments[user] = {
            **s3.environment,
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
    # For this number of requests, moto does not check permissions.
    urllib3.request("POST", f"{s3.endpoint}/moto-api/reset-auth", body=b"0")
    try:
        yield environments
    finally:
        urllib3.request("POST", f"{s3.endpoint}/moto-api/reset-auth", body=b"inf")
