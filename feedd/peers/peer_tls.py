"""TLS between daemons: each side shows a certificate, and checks that a known authority signed the other's."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import BadConfig
from feedd.flow.file_versions import file_versions
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from feedd.flow.file_versions import FileVersion
    from feedd.peers.peer_options import PeerTls
    from feedd.protocols import Clock

_LOOK_S: Final = 30.0
_log = structlog.get_logger(__name__)


class PeerContexts:
    """The contexts of both directions. Files that change are read again, for connections made later.

    Any certificate that the authorities signed is a member's: names are not compared, because members are found by
    their addresses, which come and go.

    Args:
        files: the PEM files; None: no TLS.

    Attributes:
        server: context for connections of peers; None: no TLS.
        client: context for connections to peers; None: no TLS.
    """

    def __init__(self, files: PeerTls | None) -> None:
        self._files = files
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self._version: tuple[FileVersion | None, ...] = ()
        self._refused: tuple[FileVersion | None, ...] = ()

    def read(self) -> None:
        """Read the files; blocks.

        Raises:
            BadConfig: a file cannot be used.
        """
        if self._files is None:
            return
        try:
            server, client = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
            client.check_hostname = False
            for context in (server, client):
                context.verify_mode = ssl.CERT_REQUIRED
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                self._load(context)
            self._version = self._versions()
        except (OSError, ssl.SSLError) as error:
            message = f"the TLS files for peers cannot be used: {' '.join(str(error).split())}"
            raise BadConfig(message, hint="see tls.cert, tls.key and peers.ca", stage="peers") from error
        self.server, self.client = server, client

    async def follow(self, clock: Clock) -> None:
        """Read files again when they change; never returns."""
        while True:
            await clock.sleep_s(_LOOK_S)
            if self._files is not None:
                await LOCAL_FILES.run(self._renew)

    def _renew(self) -> None:
        version = self._versions()
        if version in {self._version, self._refused}:
            return
        try:
            for context in (self.server, self.client):
                assert context is not None
                self._load(context)
        except (OSError, ssl.SSLError) as error:  # in the middle of a rotation, or a mistake
            _log.warning("the new TLS files for peers cannot be used, the former stay in use", error=str(error))
            self._refused = version
            return
        self._version = version
        _log.info("TLS files for peers read again")

    def _load(self, context: ssl.SSLContext) -> None:
        assert self._files is not None
        context.load_cert_chain(self._files.cert_path, self._files.key_path)
        context.load_verify_locations(self._files.ca_path)

    def _versions(self) -> tuple[FileVersion | None, ...]:
        assert self._files is not None
        return file_versions((self._files.cert_path, self._files.key_path, self._files.ca_path))
