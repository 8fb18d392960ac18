"""The server's TLS files. They are read again when they change, because certificates are rotated every few weeks."""

from __future__ import annotations

import ssl
import threading
from typing import TYPE_CHECKING

import grpc
import structlog

from feedd.errors import BadConfig
from feedd.flow.file_versions import file_versions

if TYPE_CHECKING:
    from feedd.flow.file_versions import FileVersion
    from feedd.serve.server_options import TlsFiles

_log = structlog.get_logger(__name__)

_Version = tuple["FileVersion | None", ...]


class CertificateFiles:
    """Certificate, key and client authorities; gRPC asks for newer ones at every handshake, from its own threads."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            BadConfig: a file cannot be read.
        """
        self._files = files
        self._guard = threading.Lock()
        self._refused: _Version | None = None
        try:
            self._version = self._versions()
            self._first = self._read()
        except OSError as error:
            raise BadConfig(
                f"the TLS file cannot be read: {(error.strerror or '').lower()}",
                object=str(error.filename),
                stage="serve",
            ) from error

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a secure port; with client authorities, clients must show a certificate."""
        needed = self._files.client_ca_path is not None
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._newer,  # type: ignore[arg-type]  # None means unchanged, which the stubs lack
            require_client_authentication=needed,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the files' content if it changed and fits together, else None: what is in use stays in use."""
        with self._guard:
            version = self._versions()
            if version in {self._version, self._refused}:
                return None
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._files.cert_path, self._files.key_path)
                found = self._read()
            except (OSError, ssl.SSLError) as error:  # in the middle of a rotation, or a mistake
                _log.warning("the new TLS files cannot be used, the former stay in use", error=str(error))
                self._refused = version
                return None
            self._version = version
            _log.info("TLS files read again", cert=str(self._files.cert_path))
            return found

    def _versions(self) -> _Version:
        files = self._files
        return file_versions(path for path in (files.cert_path, files.key_path, files.client_ca_path) if path)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        certificate, key = files.cert_path.read_bytes(), files.key_path.read_bytes()
        authorities = None if files.client_ca_path is None else files.client_ca_path.read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)
