"""The role that a client's certificate names: its common name, until the certificate expires.

TLS verified everything else when the connection began. It verifies nothing again, neither during
the connection nor when a later one resumes its session.
"""

import ssl

from pybroker.base.errors import AuthenticationError
from pybroker.base.runtime import Clock
from pybroker.security.identity import Certificate, Credentials, Login


class TlsProvider:
    method = "tls"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def authenticate(self, credentials: Credentials, address: str) -> Login:
        if not credentials.certificate:
            raise AuthenticationError(
                "Client unable to authenticate with TLS certificate: none was sent"
            )
        login = Login(common_name(credentials.certificate), not_after_ms(credentials.certificate))
        if has_expired(credentials.certificate, self._clock.now_ms()):
            raise AuthenticationError(
                "The client's certificate has expired; connect again with a new one"
            )
        return login

    def reload(self) -> None:
        """Nothing to reload: the TLS ports have the authorities' certificates."""


def not_after_ms(certificate: Certificate) -> int:
    """The certificate's expiry, in wall time."""
    return int(ssl.cert_time_to_seconds(certificate["notAfter"])) * 1000


def has_expired(certificate: Certificate, now_ms: int) -> bool:
    return now_ms >= not_after_ms(certificate)


def common_name(certificate: Certificate) -> str:
    """Raises AuthenticationError.

    Differs: Apache Pulsar uses one of several common names; here several are refused.
    """
    subject = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    if len(names) != 1 or not names[0].strip():
        raise AuthenticationError("The client's certificate must have one common name (CN)")
    return str(names[0])
