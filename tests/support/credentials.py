"""Keys, tokens and passwords for tests; nothing here is a secret."""

import base64
import json
from typing import Any

from jwt.api_jws import PyJWS

SECRET = bytes(range(32, 96))
SECRET_URL = "data:;base64," + base64.b64encode(SECRET).decode()


def token(role: str = "alice", key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    payload = json.dumps({"sub": role} | claims).encode()
    return PyJWS().encode(payload, key, algorithm)


def bearer(role: str, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role, **claims)}"}


TOKEN_SETTINGS: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": ("token",),
    "token_secret_key": SECRET_URL,
}
