"""The promises of docs/operate/security.md, with real users, real sockets and real TLS."""
