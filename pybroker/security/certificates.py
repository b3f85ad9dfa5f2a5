"""The role that a client's certificate names: its common name. TLS itself verified the rest."""

from pybroker.errors import AuthenticationError
from pybroker.security.identity import Certificate, Credentials, Login


class TlsProvider:
    method = "tls"

    async def authenticate(self, credentials: Credentials) -> Login:
        if not credentials.certificate:
            raise AuthenticationError(
                "Client unable to authenticate with TLS certificate: none came"
            )
        return Login(common_name(credentials.certificate))


def common_name(certificate: Certificate) -> str:
    """Raises AuthenticationError.

    Differs: of several common names Apache Pulsar takes one; here they are nobody's.
    """
    subject = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    if len(names) != 1 or not names[0].strip():
        raise AuthenticationError("The client's certificate must have one common name (CN)")
    return str(names[0])
