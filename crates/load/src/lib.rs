//! Network traffic: datagrams and streams, client and server.
