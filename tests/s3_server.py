"""A real S3 server over HTTP (moto), for tests of what happens on an object store."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import s3fs
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


class S3:
    """``options`` are fsspec's; ``url(name)`` is a folder that is not there yet, in a new bucket of its own."""

    def __init__(self) -> None:
        _one_put_at_a_time()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.options: dict[str, Any] = {
            "key": "test",
            "secret": "test",
            "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"},
        }

    def url(self, name: str) -> str:
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        s3fs.S3FileSystem(**self.options).call_s3("create_bucket", Bucket=bucket)
        return f"s3://{bucket}/{name}"

    def stop(self) -> None:
        self._server.stop()


def _one_put_at_a_time() -> None:
    """S3 decides on ``If-None-Match`` and stores in one step; moto looks first and stores later, in many threads."""
    original, lock = S3Response._key_response_put, threading.Lock()
    if getattr(original, "locked", False):
        return

    def put(self: S3Response, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return original(self, *args, **kwargs)

    put.locked = True  # type: ignore[attr-defined]
    S3Response._key_response_put = put  # type: ignore[method-assign]
